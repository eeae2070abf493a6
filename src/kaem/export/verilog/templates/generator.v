// @name@_generator: words of latents to @what@, bit by bit as the integer reference of KAEM.
//
// In:  AXI stream of @word_bits@-bit words, @latents@ for each image (those that @name@_prior makes).
// Out: AXI stream of @out_bits@-bit @codes@, @pixels@ for each image, in the order @order@; tlast marks the last.
// @stages@ stages that work at the same time, one product per clock each; memories of @rom_bits@ bits.
// Made by KAEM. Verilog-2005; memories are read from the .mem files beside this one.
`default_nettype none

module @name@_generator (
    input  wire        clk,
    input  wire        rst,
    input  wire [@word_top@:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output wire [@out_top@:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready,
    output wire        m_tlast
);
@body@

    reg [@pixel_top@:0] pixel;
    assign m_tlast = pixel == @pixel_bits@'d@last_pixel@;
    always @(posedge clk)
        if (rst) pixel <= @pixel_bits@'d0;
        else if (m_tvalid && m_tready) pixel <= m_tlast ? @pixel_bits@'d0 : pixel + @pixel_bits@'d1;
endmodule
`default_nettype wire
