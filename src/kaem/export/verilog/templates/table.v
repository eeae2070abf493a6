
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
