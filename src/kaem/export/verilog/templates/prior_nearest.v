
    (* rom_style = "block" *) reg [@word_top@:0] words [0:@last_word@];
    initial $readmemh("@name@_prior.mem", words);

    reg [@address_top@:0] address;
    reg valid, last;
    always @(posedge clk) begin
        if (advance) begin
            address <= @place@;
            last <= latent == LAST_LATENT;
            m_tdata <= words[address];
            m_tlast <= last;
        end
        if (rst) {m_tvalid, valid} <= 2'b00;
        else if (advance) {m_tvalid, valid} <= {valid, s_tvalid};
    end
@unused@endmodule
`default_nettype wire
