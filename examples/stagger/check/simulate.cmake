# SPDX-License-Identifier: Apache-2.0
# simulate: figures that can be worked out by hand, channels that contend, every format, bad costs.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(small --ranks 4 --microbatches 8 --json)
# (P - 1)(F + B) = 9 for both; zb-h1: (P - 1)(F + I - W) = 3.
value(33.0 makespan simulate --policy gpipe ${small})
value(9.0 bubble simulate --policy 1f1b ${small})
value(3.0 bubble simulate --policy zb-h1 ${small})
value(0.0 span_bubble simulate --policy zb-h2 ${small})
value(3.0 bubble simulate --policy zb-v ${small})
value(8 peak_in_flight.0 simulate --policy gpipe ${small})
value(4 peak_in_flight.0 simulate --policy 1f1b ${small})
value(24.0 work.3 simulate --policy 1f1b ${small})
value(9.0 idle.1.dependency simulate --policy 1f1b ${small})

# Two stages, one microbatch: F C F B C B = 1 + 5 + 1 + 2 + 5 + 2; rank 1 waits 5 for its link.
file(WRITE ${FOLDER}/one.csv "0F0,0B0\n1F0,1B0\n")
value(16.0 makespan simulate --table one.csv --transfer 5 --json)
value(5.0 idle.1.link simulate --table one.csv --transfer 5 --json)
# With the backward cut in two it could be 1 + 5 + 1 + 1 + 5 + 1 + 1.
value(15.0 lower_bound simulate --table one.csv --transfer 5 --json)
value(0.0 gap simulate --policy gpipe --ranks 1 --microbatches 4 --json)

# Lowered, two activations follow each other on one channel: the second arrives at 1 + 5 + 5.
file(WRITE ${FOLDER}/two.csv "0F0,0F1\n1F0,1F1\n")
stagger(lower two.csv --output two.comms.csv)
value(8.0 makespan simulate --table two.csv --transfer 5 --json)
value(12.0 makespan simulate --table two.comms.csv --transfer 5 --json)

# Costs of every stage from a file; a slice costs its share; a pair its own.
file(WRITE ${FOLDER}/costs.csv "stage,forward_s,backward_input_s,backward_weight_s,transfer_s\n0,1,2,3,4\n1,10,20,30,0\n")
value(74.0 makespan simulate --table one.csv --stage-costs costs.csv --json)
value(10.5 makespan simulate --policy seq-1f1b --slices 2 --ranks 2 --microbatches 3 --json)
value(28.0 makespan simulate --policy gpipe --ranks 1 --microbatches 4 --forward 1 --backward-input 2 --backward-weight 4 --json)
value(7.5 makespan simulate --policy gpipe --ranks 1 --microbatches 1 --forward 2.5 --backward-input 2.5 --backward-weight 2.5 --json)

# A second table beside the first, in every format.
stagger(schedule --policy gpipe --ranks 4 --microbatches 8 --output gpipe.csv)
set(both simulate --policy 1f1b --ranks 4 --microbatches 8 --compare gpipe.csv)
matches(0 "figure[^\n]* 1f1b  gpipe.csv\n.*makespan +33 +33\n.*rank  work, 1f1b .*work, gpipe.csv" ${both})
value(gpipe 0.policy schedule --list --json)
value(33.0 1.makespan ${both} --json)
matches(0 "^<svg .*1f1b.*gpipe.csv" ${both} --format svg)
stagger(${both} --format trace)
string(JSON type TYPE "${output}" traceEvents)
if(NOT type STREQUAL "ARRAY")
  fail("should be a trace")
endif()

refused("--forward nan " simulate --policy gpipe ${small} --forward nan)
refused("--transfer -1 " simulate --policy gpipe ${small} --transfer -1)
refused("--backward-weight inf " simulate --policy gpipe ${small} --backward-weight inf)
refused("--overlap-cost -2 " simulate --policy gpipe ${small} --overlap-cost -2)
refused("--forward = x" simulate --policy gpipe ${small} --forward x)
refused("leave --forward out" simulate --table one.csv --stage-costs costs.csv --forward 1)
refused("leave --ranks out" simulate --table one.csv --ranks 4)
refused("--policy NAME or --table FILE" simulate)
refused("2 stages but the table has 4" simulate --policy gpipe ${small} --stage-costs costs.csv)
set(header "stage,forward_s,backward_input_s,backward_weight_s,transfer_s\n")
foreach(line "0,1,2,-3,4;6;-3" "0,1,nan,3,4;5;nan" "0,1,2,3;7;3" "1,1,2,3,4;1;1" "0,1,2,3,4,5;9;4" "0,x,2,3,4;3;x" "0,1,2,3,inf;9;inf" "0,1e400,1,1,1;3;1e400")
  list(GET line 0 text)
  list(GET line 1 column)
  list(GET line 2 bad)
  file(WRITE ${FOLDER}/bad.csv "${header}${text}\n")
  if(bad STREQUAL "-3")
    set(column 7)
  endif()
  refused("bad.csv, line 2, column ${column}: '${bad}" simulate --table one.csv --stage-costs bad.csv)
endforeach()
