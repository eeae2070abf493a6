
// INPUTS numbers to OUTPUTS sums of all of them. CONSTANTS holds {bias, multiplier, negative} of each.
module @name@_dense #(
    parameter INPUTS = 5,
    parameter OUTPUTS = 10,
    parameter X = 16,
@sums@
    localparam INPUT_BITS = (INPUTS > 1) ? $clog2(INPUTS) : 1;
    localparam OUTPUT_BITS = (OUTPUTS > 1) ? $clog2(OUTPUTS) : 1;
    localparam DEPTH = INPUTS * OUTPUTS;
    localparam ADDRESS = (DEPTH > 1) ? $clog2(DEPTH) : 1;
    localparam [31:0] INPUT_LAST = INPUTS - 1, OUTPUT_LAST = OUTPUTS - 1;
    localparam [1:0] LOAD = 2'd0, RUN = 2'd1, WAIT = 2'd2;

    reg [X-1:0] inputs [0:INPUTS-1];
    reg [WEIGHT-1:0] weights [0:DEPTH-1];
    reg [TOTAL+2*FACTOR-1:0] constants [0:OUTPUTS-1];
    initial $readmemh(WEIGHTS, weights);
    initial $readmemh(CONSTANTS, constants);

    reg [1:0] state;
    reg [INPUT_BITS-1:0] index;
    reg [OUTPUT_BITS-1:0] made;
    reg [ADDRESS-1:0] address;
    reg tap_valid, tap_last;
    reg [X-1:0] x;
    reg [WEIGHT-1:0] weight;
    reg [TOTAL+2*FACTOR-1:0] constant;
    wire last_input = index == INPUT_LAST[INPUT_BITS-1:0];
    wire last_output = made == OUTPUT_LAST[OUTPUT_BITS-1:0];
    assign s_tready = state == LOAD;

    always @(posedge clk) if (s_tready && s_tvalid) inputs[index] <= s_tdata;
    always @(posedge clk) begin
        x <= inputs[index];
        weight <= weights[address];
        constant <= constants[made];
        tap_last <= last_input;
        tap_valid <= state == RUN && !rst;
        if (rst) begin
            state <= LOAD;
            index <= {INPUT_BITS{1'b0}};
            made <= {OUTPUT_BITS{1'b0}};
            address <= {ADDRESS{1'b0}};
        end else case (state)
            LOAD: if (s_tvalid) begin
                index <= last_input ? {INPUT_BITS{1'b0}} : index + 1'b1;
                if (last_input) state <= RUN;
            end
            RUN: begin
                index <= last_input ? {INPUT_BITS{1'b0}} : index + 1'b1;
                address <= (last_input && last_output) ? {ADDRESS{1'b0}} : address + 1'b1;
                if (last_input) state <= WAIT;
            end
            default: if (m_tvalid && m_tready) begin
                made <= last_output ? {OUTPUT_BITS{1'b0}} : made + 1'b1;
                state <= last_output ? LOAD : RUN;
            end
        endcase
    end

    @name@_mac #(.X(X), .WEIGHT(WEIGHT), .TOTAL(TOTAL), .FACTOR(FACTOR), .SHIFT(SHIFT), .OUT(OUT),
                 .LOW(LOW), .HIGH(HIGH)) mac (
        .clk(clk), .rst(rst), .tap_valid(tap_valid), .tap_last(tap_last), .tap_x(x),
        .tap_weight(weight), .bias(constant[TOTAL+2*FACTOR-1:2*FACTOR]),
        .multiplier(constant[2*FACTOR-1:FACTOR]), .negative(constant[FACTOR-1:0]),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready));
endmodule
