    parameter WEIGHT = 8,
    parameter TOTAL = 32,
    parameter FACTOR = 20,
    parameter SHIFT = 16,
    parameter OUT = 8,
    parameter signed [31:0] LOW = -127,
    parameter signed [31:0] HIGH = 127,
    parameter WEIGHTS = "weights.mem",
    parameter CONSTANTS = "constants.mem"
) (
    input  wire           clk,
    input  wire           rst,
    input  wire [X-1:0]   s_tdata,
    input  wire           s_tvalid,
    output wire           s_tready,
    output wire [OUT-1:0] m_tdata,
    output wire           m_tvalid,
    input  wire           m_tready
);
