# run_hls.tcl: simulates, synthesises and packs the design. Run: vitis_hls -f run_hls.tcl
open_project -reset ${name}_hls
set_top ${name}_top
add_files ${name}_hls.cpp
add_files -tb [list ${name}_tb.cpp ${name}_golden.txt]
open_solution -reset solution
set_part {${part}}
create_clock -period 10 -name default
csim_design
csynth_design
export_design -format ip_catalog
exit
