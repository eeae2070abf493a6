
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
