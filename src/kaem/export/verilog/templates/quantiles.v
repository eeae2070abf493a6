
// @name@_quantiles: the @latents@ quantiles of a 32-bit seed, mixed by @rounds@ rounds of Speck64, one each clock, and
// drawn by xoroshiro64+, one each clock. With stream = 1 at the end of a sample, the next goes on from there, without
// another seed: 2^64 - 1 quantiles before they repeat.
module @name@_quantiles (
    input  wire        clk,
    input  wire        rst,
    input  wire        stream,
    input  wire [31:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output wire [15:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready
);
    reg [31:0] a, b;
    reg [@round_top@:0] round;
    reg [@latent_top@:0] left;  // quantiles of this sample that come after the next one
    reg mixing, busy;

    wire [31:0] mixed = ({a[7:0], a[31:8]} + b) ^ {@round_zeros@'d0, round};
    wire [31:0] both = a ^ b;
    wire [31:0] drawn = a + b;
    wire last = left == @latent_bits@'d0;
    assign m_tdata = drawn[31:16];
    assign m_tvalid = busy;
    assign s_tready = !mixing && !busy;

    always @(posedge clk) begin
        if (s_tready) begin
            a <= s_tdata;
            b <= 32'h@second@;
            round <= @round_bits@'d0;
            left <= @latent_bits@'d@last_latent@;
        end else if (mixing) begin
            a <= mixed;
            b <= {b[28:0], b[31:29]} ^ mixed;
            round <= round + @round_bits@'d1;
        end else if (m_tready) begin
            a <= {a[5:0], a[31:6]} ^ both ^ {both[22:0], 9'd0};
            b <= {both[18:0], both[31:19]};
            left <= last ? @latent_bits@'d@last_latent@ : left - @latent_bits@'d1;
        end
        if (rst) {mixing, busy} <= 2'b00;
        else if (s_tready) mixing <= s_tvalid;
        else if (mixing) {mixing, busy} <= (round == @round_bits@'d@last_round@) ? 2'b01 : 2'b10;
        else if (m_tready && last && !stream) busy <= 1'b0;
    end

    // The lower half only carries.
    wire unused = &{1'b0, drawn[15:0]};
endmodule
