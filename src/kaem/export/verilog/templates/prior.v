// @name@_prior: samples of @latents@ latents from 16-bit quantiles, by inverse CDFs in block RAM.
//
// In:  AXI stream of quantiles u (0 .. 65535 for 0 .. 1), in the order of the latents, over and over.
// Out: AXI stream of @word_bits@-bit words, in the same order; tlast marks the last latent of a sample.
// Each latent has @entries@ entries, read @reading@; @addressing@.
// One word per clock, @delay@ clocks after its quantile. Reset is synchronous and active high.
// Made by KAEM. Verilog-2005; memories are read from the .mem files beside this one.
`default_nettype none

module @name@_prior (
    input  wire        clk,
    input  wire        rst,
    input  wire [15:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output reg  [@word_top@:0] m_tdata,
    output reg         m_tvalid,
    input  wire        m_tready,
    output reg         m_tlast
);
    localparam [@latent_top@:0] LAST_LATENT = @latent_bits@'d@last_latent@;

    wire advance = m_tready || !m_tvalid;
    assign s_tready = advance;

    reg [@latent_top@:0] latent;
    always @(posedge clk)
        if (rst) latent <= @latent_bits@'d0;
        else if (advance && s_tvalid)
            latent <= (latent == LAST_LATENT) ? @latent_bits@'d0 : latent + @latent_bits@'d1;

    // Which segment of the unit interval u is in, which entry of the table, and how far into its cell.
@decode@
