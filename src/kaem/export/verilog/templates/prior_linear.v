
    // Synthesis weighs block RAM against logic, and half a table is close to where that tips.
    (* rom_style = "block" *) reg [@word_top@:0] even [0:@last_word@];
    (* rom_style = "block" *) reg [@word_top@:0] odd [0:@last_word@];
    initial $readmemh("@name@_prior_even.mem", even);
    initial $readmemh("@name@_prior_odd.mem", odd);

    // The quantile behind the last cell of a segment: {latent, segment}.
    function [@word_top@:0] behind(input [@key_top@:0] key);
        case (key)
@ends@
            default: behind = @word_bits@'d0;
        endcase
    endfunction

    // 1: the pair of entries to read.
    wire [@half_top@:0] next_even = entry[@entry_top@:1] + {@half_zeros@entry[0]};
    reg [@address_top@:0] even_address, odd_address;
    reg [@fraction_top@:0] fraction_1;
    reg [@key_top@:0] key_1;
    reg swap_1, end_1;
    // 2: the words of both.
    reg [@word_top@:0] even_word, odd_word, end_word;
    reg [@fraction_top@:0] fraction_2;
    reg swap_2, end_2;
    // 3: the left one, and the step to the right one.
    wire [@word_top@:0] left = swap_2 ? odd_word : even_word;
    wire [@word_top@:0] right = end_2 ? end_word : swap_2 ? even_word : odd_word;
    reg signed [@word_bits@:0] step;
    reg [@word_top@:0] left_3, left_4;
    reg [@fraction_top@:0] fraction_3;
    // 4: the product, 5: the rounded sum, which lies between two words.
    wire signed [@product_top@:0] step_wide = {{@fraction_more@{step[@word_bits@]}}, step};
    wire signed [@product_top@:0] fraction_wide = {@product_zeros@'d0, fraction_3};
    reg signed [@product_top@:0] product;
    wire signed [@product_top@:0] sum =
        {2'b00, left_4, @fraction_bits@'d@half@} + product;

    reg [4:0] last;
    reg [3:0] valid;
    always @(posedge clk) begin
        if (advance) begin
            even_address <= @even_place@;
            odd_address <= @odd_place@;
            fraction_1 <= fraction;
            key_1 <= {latent, segment};
            swap_1 <= entry[0];
            end_1 <= final_cell;

            even_word <= even[even_address];
            odd_word <= odd[odd_address];
            end_word <= behind(key_1);
            fraction_2 <= fraction_1;
            swap_2 <= swap_1;
            end_2 <= end_1;

            step <= $signed({1'b0, right}) - $signed({1'b0, left});
            left_3 <= left;
            fraction_3 <= fraction_2;

            product <= step_wide * fraction_wide;
            left_4 <= left_3;

            m_tdata <= sum[@sum_top@:@fraction_bits@];
            last <= {last[3:0], latent == LAST_LATENT};
        end
        if (rst) {m_tvalid, valid} <= 5'd0;
        else if (advance) {m_tvalid, valid} <= {valid, s_tvalid};
    end
    always @(*) m_tlast = last[4];

    // A sum lies between two words: its sign and carry are zero, and its fraction was only rounded.
    wire unused = &{1'b0, sum[@product_top@:@sum_bits@], sum[@fraction_top@:0]};
endmodule
`default_nettype wire
