
// Coordinates to basis functions: FUNCTIONS numbers for each of INPUTS coordinates, read linearly from
// tables of 2^CELLS + 1 knots that hold all functions of a knot side by side.
module @name@_features #(
    parameter INPUTS = 5,
    parameter FUNCTIONS = 8,
    parameter CELLS = 8,
    parameter WORD = 8,     // bits of a table's words, signed
    parameter TABLES = "tables.mem"
) (
    input  wire            clk,
    input  wire            rst,
    input  wire [15:0]     s_tdata,
    input  wire            s_tvalid,
    output wire            s_tready,
    output wire [WORD-1:0] m_tdata,
    output wire            m_tvalid,
    input  wire            m_tready
);
    localparam REST = 16 - CELLS;
    localparam ROW = ((1 << CELLS) + 1) * FUNCTIONS;
    localparam DEPTH = INPUTS * ROW;
    localparam ADDRESS = $clog2(DEPTH);
    localparam FUNCTION_BITS = (FUNCTIONS > 1) ? $clog2(FUNCTIONS) : 1;
    localparam PRODUCT = WORD + REST + 2;
    localparam [31:0] FUNCTION_LAST = FUNCTIONS - 1, ROW_STEP = ROW, ROW_LAST = (INPUTS - 1) * ROW;
    localparam [31:0] KNOT_STEP = FUNCTIONS;
    localparam [2:0] TAKE = 3'd0, LEFT = 3'd1, RIGHT = 3'd2, MULTIPLY = 3'd3, GIVE = 3'd4;

    reg [WORD-1:0] tables [0:DEPTH-1];
    initial $readmemh(TABLES, tables);

    reg [2:0] state;
    reg [15:0] x;
    reg [FUNCTION_BITS-1:0] index;
    reg [ADDRESS-1:0] row;   // where the table of this input begins
    reg [ADDRESS-1:0] knot;  // where the left knot begins
    reg [ADDRESS-1:0] address;
    reg [WORD-1:0] word;
    reg signed [WORD-1:0] left;
    wire [ADDRESS-1:0] cell_wide = {{(ADDRESS-CELLS){1'b0}}, s_tdata[15:REST]};
    wire last = index == FUNCTION_LAST[FUNCTION_BITS-1:0];

    always @(posedge clk) word <= tables[address];
    always @(*)
        address = knot + {{(ADDRESS-FUNCTION_BITS){1'b0}}, index}
                + ((state == RIGHT) ? KNOT_STEP[ADDRESS-1:0] : {ADDRESS{1'b0}});

    wire signed [WORD:0] step = $signed({word[WORD-1], word}) - $signed({left[WORD-1], left});
    wire signed [PRODUCT-1:0] step_wide = {{(PRODUCT-WORD-1){step[WORD]}}, step};
    wire signed [PRODUCT-1:0] rest_wide = {{(PRODUCT-REST){1'b0}}, x[REST-1:0]};
    reg signed [PRODUCT-1:0] product;
    wire [PRODUCT-1:0] sum = {{2{left[WORD-1]}}, left, 1'b1, {(REST-1){1'b0}}} + product;
    assign m_tdata = sum[WORD+REST-1:REST];
    assign m_tvalid = state == GIVE;
    assign s_tready = state == TAKE;

    always @(posedge clk) begin
        if (state == TAKE) begin
            x <= s_tdata;
            knot <= row + cell_wide * KNOT_STEP[ADDRESS-1:0];
        end
        if (state == RIGHT) left <= word;
        if (state == MULTIPLY) product <= step_wide * rest_wide;
        if (rst) begin
            state <= TAKE;
            index <= {FUNCTION_BITS{1'b0}};
            row <= {ADDRESS{1'b0}};
        end else case (state)
            TAKE: if (s_tvalid) state <= LEFT;
            LEFT: state <= RIGHT;
            RIGHT: state <= MULTIPLY;
            MULTIPLY: state <= GIVE;
            default: if (m_tready) begin
                index <= last ? {FUNCTION_BITS{1'b0}} : index + 1'b1;
                state <= last ? TAKE : LEFT;
                if (last)
                    row <= (row == ROW_LAST[ADDRESS-1:0]) ? {ADDRESS{1'b0}}
                                                          : row + ROW_STEP[ADDRESS-1:0];
            end
        endcase
    end

    // A sum lies between two words, and its fraction was only rounded; the cell is in knot.
    wire unused = &{1'b0, sum[PRODUCT-1:WORD+REST], sum[REST-1:0], x[15:REST]};
endmodule
