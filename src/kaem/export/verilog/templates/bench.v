// @bench@: feeds golden inputs to @name@_@module@ and compares every word that it gives, with random pauses
// on both sides. Prints PASS or FAIL with counts. Run it in this folder, for example
//     iverilog -g2005 -s @bench@ -o bench @name@_*.v && vvp bench
`timescale 1ns / 1ps
`default_nettype none

module @bench@;
    parameter SAMPLES = @samples@;
@inputs@
    localparam OUTPUTS = @outputs@;
    localparam PATIENCE = 100000000;  // clocks without a word
    localparam FED = @fed@, EXPECTED = SAMPLES * OUTPUTS;

    reg [31:0] given [0:FED-1];
    reg [@out_top@:0] expected [0:EXPECTED-1];
@read@

    reg clk = 1'b0, rst = 1'b1;
    always #5 clk = !clk;
    initial #42 rst = 1'b0;

    reg [31:0] noise = 32'h2545F491;
    wire [31:0] first = noise ^ (noise << 13);
    wire [31:0] second = first ^ (first >> 17);

    reg s_tvalid = 1'b0, m_tready = 1'b0, held = 1'b0;
    wire s_tready, m_tvalid, m_tlast;
    wire [@out_top@:0] m_tdata;
    reg [@out_top@:0] held_tdata;
    integer fed = 0, checked = 0, wrong = 0, idle = 0, clocks = 0;
    wire [31:0] s_tdata = given[(fed < FED) ? fed : 0];
    wire s_taken = s_tvalid && s_tready, m_taken = m_tvalid && m_tready;
    wire last = (checked % OUTPUTS) == OUTPUTS - 1;

@instance@

    always @(posedge clk) begin
        noise <= second ^ (second << 5);
        m_tready <= noise[9:8] != 2'b00;
        if (rst) s_tvalid <= 1'b0;
        else begin
            clocks <= clocks + 1;
            if (s_taken) fed <= fed + 1;
            if (s_taken || !s_tvalid) s_tvalid <= noise[17:16] != 2'b00 && fed + (s_taken ? 1 : 0) < FED;
            // What is offered must stay until it is taken.
            held <= m_tvalid && !m_tready;
            held_tdata <= m_tdata;
            if ((held && (!m_tvalid || m_tdata !== held_tdata))
                || (m_taken && checked < EXPECTED && (m_tdata !== expected[checked] || m_tlast !== last))) begin
                wrong <= wrong + 1;
                if (wrong < 10)
                    $display("word %0d: got %h, expected %h", checked, m_tdata, expected[checked]);
            end
            if (m_taken) checked <= checked + 1;
            idle <= m_taken ? 0 : idle + 1;
            if (checked == EXPECTED || idle == PATIENCE) begin
                if (wrong == 0 && checked == EXPECTED) $write("PASS");
                else $write("FAIL");
                $display(": %0d wrong, %0d of %0d words, %0d clocks", wrong, checked, EXPECTED, clocks);
                $finish;
            end
        end
    end
endmodule
`default_nettype wire
