// @name@_top: @what@.
//
// With seeded = 1, each 32-bit seed of the AXI stream seed_* makes one sample: @name@_quantiles draws its @latents@
// quantiles. With stream = 1 as well, one seed makes samples without end, until stream = 0 ends them with the sample
// that is being drawn. With seeded = 0, the quantiles come from the AXI stream u_*, @latents@ for each sample.
// Change seeded only while nothing is on its way.
// Out: AXI stream of @out_bits@-bit @codes@, @outputs@ for each sample; tlast marks the last.
module @name@_top (
    input  wire        clk,
    input  wire        rst,
    input  wire        seeded,
    input  wire        stream,
    input  wire [31:0] seed_tdata,
    input  wire        seed_tvalid,
    output wire        seed_tready,
    input  wire [15:0] u_tdata,
    input  wire        u_tvalid,
    output wire        u_tready,
    output wire [@out_top@:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready,
    output wire        m_tlast
);
    wire [15:0] drawn_tdata;
    wire drawn_tvalid, prior_tready;
    wire quantiles_tready;
    assign u_tready = !seeded && prior_tready;
    assign seed_tready = seeded && quantiles_tready;

    @name@_quantiles quantiles (
        .clk(clk), .rst(rst), .stream(stream),
        .s_tdata(seed_tdata), .s_tvalid(seed_tvalid && seeded), .s_tready(quantiles_tready),
        .m_tdata(drawn_tdata), .m_tvalid(drawn_tvalid), .m_tready(seeded && prior_tready));
@body@
endmodule
