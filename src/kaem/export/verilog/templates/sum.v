
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
