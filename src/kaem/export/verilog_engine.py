"""Parts of all layers in Verilog: streams of numbers in, streams of numbers out.

`mac` is the one engine: products are added, one at each clock, then the bias, and the sum is scaled, rounded and clipped as
`Scaling` does. `sum` makes coordinates with it, `features` reads basis functions, and `table` the sigmoid.
"""

MAC = """
// Adds products, one at each clock; after the last one
//     y = clip((total M + 2^(SHIFT-1)) >> SHIFT, LOW, HIGH),  M = negative where the total is below zero.
// The next products may come when y has been taken.
module @name@_mac #(
    parameter X = 8,        // bits of a number, signed
    parameter WEIGHT = 8,   // bits of a weight, signed
    parameter TOTAL = 32,   // bits of a total, signed, more than X + WEIGHT
    parameter FACTOR = 20,  // bits of M, signed
    parameter SHIFT = 16,
    parameter OUT = 16,     // bits of y: unsigned if LOW is zero, else signed
    parameter signed [31:0] LOW = 0,
    parameter signed [31:0] HIGH = 65535
) (
    input  wire                     clk,
    input  wire                     rst,
    input  wire                     tap_valid,
    input  wire                     tap_last,
    input  wire signed [X-1:0]      tap_x,
    input  wire signed [WEIGHT-1:0] tap_weight,
    input  wire signed [TOTAL-1:0]  bias,
    input  wire signed [FACTOR-1:0] multiplier,
    input  wire signed [FACTOR-1:0] negative,
    output reg  [OUT-1:0]           m_tdata,
    output reg                      m_tvalid,
    input  wire                     m_tready
);
    localparam PRODUCT = X + WEIGHT;
    localparam SCALED = ((TOTAL + FACTOR > SHIFT) ? TOTAL + FACTOR : SHIFT) + 1;
    localparam ROUNDED = SCALED - SHIFT + 32;  // no narrower than LOW and HIGH

    wire signed [PRODUCT-1:0] x_wide = {{WEIGHT{tap_x[X-1]}}, tap_x};
    wire signed [PRODUCT-1:0] weight_wide = {{X{tap_weight[WEIGHT-1]}}, tap_weight};
    reg signed [PRODUCT-1:0] product;
    wire signed [TOTAL-1:0] product_wide = {{(TOTAL-PRODUCT){product[PRODUCT-1]}}, product};
    reg signed [TOTAL-1:0] total, sum;
    wire signed [FACTOR-1:0] factor = sum[TOTAL-1] ? negative : multiplier;
    wire signed [SCALED-1:0] sum_wide = {{(SCALED-TOTAL){sum[TOTAL-1]}}, sum};
    wire signed [SCALED-1:0] factor_wide = {{(SCALED-FACTOR){factor[FACTOR-1]}}, factor};
    reg signed [SCALED-1:0] scaled;
    wire [SCALED-1:0] raised = scaled + {{(SCALED-SHIFT){1'b0}}, 1'b1, {(SHIFT-1){1'b0}}};
    wire signed [ROUNDED-1:0] rounded = {{32{raised[SCALED-1]}}, raised[SCALED-1:SHIFT]};
    wire signed [ROUNDED-1:0] least = {{(ROUNDED-32){LOW[31]}}, LOW};
    wire signed [ROUNDED-1:0] most = {{(ROUNDED-32){HIGH[31]}}, HIGH};

    reg empty, product_valid, product_last, total_done, sum_done, scaled_done;
    always @(posedge clk) begin
        product <= x_wide * weight_wide;
        if (product_valid) total <= (empty ? {TOTAL{1'b0}} : total) + product_wide;
        if (total_done) sum <= total + bias;
        if (sum_done) scaled <= sum_wide * factor_wide;
        if (scaled_done)
            m_tdata <= (rounded < least) ? least[OUT-1:0]
                     : (rounded > most) ? most[OUT-1:0] : rounded[OUT-1:0];
        if (rst) begin
            {product_valid, product_last, total_done, sum_done, scaled_done} <= 5'd0;
            empty <= 1'b1;
            m_tvalid <= 1'b0;
        end else begin
            product_valid <= tap_valid;
            product_last <= tap_last;
            if (product_valid) empty <= product_last;
            total_done <= product_valid && product_last;
            sum_done <= total_done;
            scaled_done <= sum_done;
            m_tvalid <= scaled_done || (m_tvalid && !m_tready);
        end
    end

    // Rounding drops the lowest bits.
    wire unused = &{1'b0, raised[SHIFT-1:0]};
endmodule
"""

SUM = """
// Words of latents to coordinates: each is a weighted sum of TERMS words in a row.
module @name@_sum #(
    parameter WORD = 16,    // bits of a word, unsigned
    parameter COUNT = 10,   // words of a sample
    parameter TERMS = 2,
    parameter WEIGHT = 18,
    parameter TOTAL = 40,
    parameter SHIFT = 16,
    parameter OUT = 16,
    parameter WEIGHTS = "weights.mem"
) (
    input  wire            clk,
    input  wire            rst,
    input  wire [WORD-1:0] s_tdata,
    input  wire            s_tvalid,
    output wire            s_tready,
    output wire [OUT-1:0]  m_tdata,
    output wire            m_tvalid,
    input  wire            m_tready
);
    localparam COUNT_BITS = (COUNT > 1) ? $clog2(COUNT) : 1;
    localparam TERM_BITS = (TERMS > 1) ? $clog2(TERMS) : 1;
    localparam [31:0] COUNT_LAST = COUNT - 1, TERM_LAST = TERMS - 1;

    reg [WEIGHT-1:0] weights [0:COUNT-1];
    initial $readmemh(WEIGHTS, weights);

    reg [COUNT_BITS-1:0] index;
    reg [TERM_BITS-1:0] term;
    reg waiting, tap_valid, tap_last;
    reg [WORD-1:0] word;
    reg [WEIGHT-1:0] weight;
    assign s_tready = !waiting;
    wire taken = s_tvalid && s_tready;
    wire last_term = term == TERM_LAST[TERM_BITS-1:0];
    wire last_word = index == COUNT_LAST[COUNT_BITS-1:0];
    always @(posedge clk) begin
        word <= s_tdata;
        weight <= weights[index];
        tap_last <= last_term;
        if (rst) begin
            index <= {COUNT_BITS{1'b0}};
            term <= {TERM_BITS{1'b0}};
            waiting <= 1'b0;
            tap_valid <= 1'b0;
        end else begin
            tap_valid <= taken;
            if (taken) begin
                index <= last_word ? {COUNT_BITS{1'b0}} : index + 1'b1;
                term <= last_term ? {TERM_BITS{1'b0}} : term + 1'b1;
                waiting <= last_term;
            end else if (m_tvalid && m_tready) waiting <= 1'b0;
        end
    end

    @name@_mac #(.X(WORD + 1), .WEIGHT(WEIGHT), .TOTAL(TOTAL), .FACTOR(2), .SHIFT(SHIFT), .OUT(OUT),
                 .LOW(0), .HIGH((1 << OUT) - 1)) mac (
        .clk(clk), .rst(rst), .tap_valid(tap_valid), .tap_last(tap_last), .tap_x({1'b0, word}),
        .tap_weight(weight), .bias({TOTAL{1'b0}}), .multiplier(2'sd1), .negative(2'sd1),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready));
endmodule
"""

FEATURES = """
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
"""

TABLE = """
// Codes to words, by one look-up.
module @name@_table #(
    parameter CODE = 12,
    parameter WORD = 8,
    parameter WORDS = "words.mem"
) (
    input  wire            clk,
    input  wire            rst,
    input  wire [CODE-1:0] s_tdata,
    input  wire            s_tvalid,
    output wire            s_tready,
    output reg  [WORD-1:0] m_tdata,
    output reg             m_tvalid,
    input  wire            m_tready
);
    reg [WORD-1:0] words [0:(1<<CODE)-1];
    initial $readmemh(WORDS, words);
    assign s_tready = m_tready || !m_tvalid;
    always @(posedge clk) begin
        if (s_tready) m_tdata <= words[s_tdata];
        if (rst) m_tvalid <= 1'b0;
        else if (s_tready) m_tvalid <= s_tvalid;
    end
endmodule
"""
