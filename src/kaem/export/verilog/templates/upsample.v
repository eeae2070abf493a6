
// A 4 x 4 transposed convolution with stride 2, padded by one: HEIGHT x WIDTH x INPUTS numbers to
// 2 HEIGHT x 2 WIDTH x OUTPUTS sums. An output sees 2 x 2 pixels through the taps of its phase (odd or even row and
// column); weights are in the order [output][phase of row][phase of column][tap row][tap column][input].
module @name@_upsample #(
    parameter HEIGHT = 7,
    parameter WIDTH = 7,
    parameter INPUTS = 8,
    parameter OUTPUTS = 8,
    parameter X = 8,
@sums@
    localparam [31:0] PIXELS = HEIGHT * WIDTH * INPUTS, DEPTH = 16 * INPUTS * OUTPUTS;
    localparam PLACE = (PIXELS > 1) ? $clog2(PIXELS) : 1, ADDRESS = $clog2(DEPTH);
    localparam INPUT_BITS = (INPUTS > 1) ? $clog2(INPUTS) : 1;
    localparam OUTPUT_BITS = (OUTPUTS > 1) ? $clog2(OUTPUTS) : 1;
    localparam [31:0] ROWS = HEIGHT, COLUMNS = WIDTH, INPUT_LAST = INPUTS - 1;
    localparam [31:0] OUTPUT_LAST = OUTPUTS - 1, PIXEL_LAST = PIXELS - 1;
    localparam [31:0] ROW_STEP = WIDTH * INPUTS, PIXEL_STEP = INPUTS, PHASE_STEP = 4 * INPUTS;
    localparam [1:0] LOAD = 2'd0, START = 2'd1, RUN = 2'd2, WAIT = 2'd3;

    reg [X-1:0] inputs [0:PIXELS-1];
    reg [WEIGHT-1:0] weights [0:DEPTH-1];
    reg [TOTAL+2*FACTOR-1:0] constants [0:OUTPUTS-1];
    initial $readmemh(WEIGHTS, weights);
    initial $readmemh(CONSTANTS, constants);

    reg [1:0] state;
    reg [PLACE-1:0] loaded, place;
    reg [15:0] row, column;  // of the output
    reg [OUTPUT_BITS-1:0] made;
    reg [INPUT_BITS-1:0] index;
    reg tap_row, tap_column;
    reg [ADDRESS-1:0] next_address, address;
    reg [1:0] valid, last, seen;  // of taps: the place is known, the numbers are read
    reg [X-1:0] x;
    reg [WEIGHT-1:0] weight;
    reg [TOTAL+2*FACTOR-1:0] constant;

    // Rows and columns of the input, counted from the line of zeros around it.
    wire [31:0] seen_row = {17'd0, row[15:1]} + {31'd0, row[0]} + {31'd0, tap_row};
    wire [31:0] seen_column = {17'd0, column[15:1]} + {31'd0, column[0]} + {31'd0, tap_column};
    wire exists = seen_row != 32'd0 && seen_row <= ROWS
               && seen_column != 32'd0 && seen_column <= COLUMNS;
    wire [31:0] next_place = (seen_row - 32'd1) * ROW_STEP + (seen_column - 32'd1) * PIXEL_STEP
                           + {{(32-INPUT_BITS){1'b0}}, index};
    wire [31:0] phase = {{(30-OUTPUT_BITS){1'b0}}, made, row[0], column[0]} * PHASE_STEP;
    wire last_input = index == INPUT_LAST[INPUT_BITS-1:0];
    wire last_tap = last_input && tap_column && tap_row;
    wire last_output = made == OUTPUT_LAST[OUTPUT_BITS-1:0];
    wire last_column = {16'd0, column} == 2 * COLUMNS - 32'd1;
    wire last_row = {16'd0, row} == 2 * ROWS - 32'd1;
    wire last_pixel = loaded == PIXEL_LAST[PLACE-1:0];
    assign s_tready = state == LOAD;

    always @(posedge clk) if (s_tready && s_tvalid) inputs[loaded] <= s_tdata;
    always @(posedge clk) begin
        place <= next_place[PLACE-1:0];
        address <= next_address;
        x <= inputs[place];
        weight <= weights[address];
        constant <= constants[made];
        last <= {last[0], last_tap};
        seen <= {seen[0], exists};
        if (rst) begin
            state <= LOAD;
            valid <= 2'b00;
            loaded <= {PLACE{1'b0}};
            row <= 16'd0;
            column <= 16'd0;
            made <= {OUTPUT_BITS{1'b0}};
            index <= {INPUT_BITS{1'b0}};
            {tap_row, tap_column} <= 2'b00;
        end else begin
            valid <= {valid[0], state == RUN};
            case (state)
                LOAD: if (s_tvalid) begin
                    loaded <= last_pixel ? {PLACE{1'b0}} : loaded + 1'b1;
                    if (last_pixel) state <= START;
                end
                START: begin
                    next_address <= phase[ADDRESS-1:0];
                    state <= RUN;
                end
                RUN: begin
                    next_address <= next_address + 1'b1;
                    index <= last_input ? {INPUT_BITS{1'b0}} : index + 1'b1;
                    if (last_input) {tap_row, tap_column} <= {tap_row, tap_column} + 2'd1;
                    if (last_tap) state <= WAIT;
                end
                default: if (m_tvalid && m_tready) begin
                    made <= last_output ? {OUTPUT_BITS{1'b0}} : made + 1'b1;
                    if (last_output) column <= last_column ? 16'd0 : column + 16'd1;
                    if (last_output && last_column) row <= last_row ? 16'd0 : row + 16'd1;
                    state <= (last_output && last_column && last_row) ? LOAD : START;
                end
            endcase
        end
    end

    @name@_mac #(.X(X), .WEIGHT(WEIGHT), .TOTAL(TOTAL), .FACTOR(FACTOR), .SHIFT(SHIFT), .OUT(OUT),
                 .LOW(LOW), .HIGH(HIGH)) mac (
        .clk(clk), .rst(rst), .tap_valid(valid[1]), .tap_last(last[1]),
        .tap_x(seen[1] ? x : {X{1'b0}}), .tap_weight(weight),
        .bias(constant[TOTAL+2*FACTOR-1:2*FACTOR]), .multiplier(constant[2*FACTOR-1:FACTOR]),
        .negative(constant[FACTOR-1:0]), .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready));

    // Memories need fewer bits than the arithmetic of their addresses has.
    wire unused = &{1'b0, next_place[31:PLACE], phase[31:ADDRESS]};
endmodule
