# SPDX-License-Identifier: Apache-2.0
# partition: partitions that can be computed by hand, each policy, and bad input.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

# Four layers of 3 s each (1 forward, 2 backward), 10 bytes over each boundary, 5 bytes of parameters.
set(layers "")
foreach(name a b c d)
  string(APPEND layers "{\"name\": \"${name}\", \"forward_s\": 1, \"backward_s\": 2, \"activation_bytes\": 10, \"parameter_bytes\": 5},\n")
endforeach()
string(REGEX REPLACE ",\n$" "" layers "${layers}")
file(WRITE ${FOLDER}/four.json "{\"name\": \"four\", \"batch\": 8, \"device\": \"V\", \"layers\": [\n${layers}]}")
# Two V and one G of half the speed in node 0, one V in node 1; 0.5 s + 10 bytes / 20 inside, 10 / 10 between.
file(WRITE ${FOLDER}/three.json [[{"name": "three", "nodes": [
  {"count": 1, "devices": [{"count": 2, "kind": "V", "memory_bytes": 200, "speed": 1},
                           {"count": 1, "kind": "G", "memory_bytes": 200, "speed": 0.5}],
   "intra": {"alpha_s": 0.5, "bytes_per_s": 20}},
  {"count": 1, "devices": [{"count": 1, "kind": "V", "memory_bytes": 200, "speed": 1}], "intra": {"alpha_s": 0.5, "bytes_per_s": 20}}],
  "inter": {"alpha_s": 0, "bytes_per_s": 10, "all_reduce_bytes_per_s": 10}}
]])
set(of partition --profile four.json --cluster three.json --json --devices)

# V,V: two layers each, 6 s and a transfer of 0.5 + 10 / 20 on both sides of the one cut.
value(7.0 bottleneck_s ${of} V,V)
value(2 cuts.0 ${of} V,V)
value(7.0 stage_s.1 ${of} V,V)
value(7.0 lower_bound_s ${of} V,V)
# The first stage holds one minibatch: 10 (2 + 1) + 20; the last the same.
value(50 memory_bytes.0 ${of} V,V)
value(50 memory_bytes.1 ${of} V,V)
# With four: 10 (2 + 4) + 20 * 4 before, 10 (2 + 1) + 20 and three boundaries waiting at the end.
value(140 memory_bytes.0 ${of} V,V --in-flight 4)
value(80 memory_bytes.1 ${of} V,V --in-flight 4)
# V,G: the slow one takes one layer, 6 s and 1 s; the other three, 9 s and 1 s. Two layers on it: 13 s.
value(10.0 bottleneck_s ${of} V,G)
value(3 cuts.0 ${of} V,G)
value(1 cuts.0 ${of} G,V)
# V in node 0 and V in node 1: the transfer takes 10 / 10.
value(7.0 bottleneck_s ${of} V,V@1)
value(V@1 devices.1 ${of} V,V@1)
# G, V, V: 6 + 1 | 3 + 2 | 6 + 1. In the order V, G, V the slow one receives twice: 8 s.
value(8.0 bottleneck_s ${of} V,G,V)
value(7.0 bottleneck_s ${of} V,G,V --any-order)
value(12.0 bottleneck_s ${of} V)
value(7.0 bottleneck_s ${of} V,V --policy even)
value(7.0 bottleneck_s ${of} V,V --policy block)
value(13.0 bottleneck_s ${of} V,G --policy even)
value(10.0 lower_bound_s ${of} V,G --policy even)
# PipeDream: one stage on both, (12 + 4 * 20 / (20 * 2)) / 2 = 7; two stages of 6, 2 * 10 / 20 over the cut.
value(6.0 bottleneck_s ${of} V,V --policy pipedream)
value(V devices.0.0 ${of} V,V --policy pipedream)
matches(0 "stage +layers +first layer +device +time +memory.*slowest stage 7.000 s, the best there is"
        partition --profile four.json --cluster three.json --devices V,V)

# A graph.txt can be partitioned too, on a preset.
set(meta "forward_compute_time=1000.000, backward_compute_time=2000.000, activation_size=0.0, parameter_size=0.000")
file(WRITE ${FOLDER}/graph.txt "node1 -- a -- ${meta}\nnode2 -- b -- ${meta}\n\tnode1 -- node2\n")
value(3.0 bottleneck_s partition --profile graph.txt --cluster dapple-a:1x2 --devices V100,V100 --json)

# No partition fits: the error names the layer and a remedy.
# With 16 in flight one layer needs 5 (2 + 16) + 10 * 16 bytes; with 12, 190.
run(${of} V,V --in-flight 16)
if(NOT "${result}|${output}" STREQUAL "1|" OR NOT "${errors}" MATCHES
   "no partition fits with 16 in flight.*stage 0 .layers 0 to 0. need 250 bytes on device 0, which has 200.*it fits with 12 in flight, or with 1.25[0-9]* times the memory.*layer 0 is 'a'")
  fail("should end with 1 and say what does not fit, and what would")
endif()
value(190 memory_bytes.0 ${of} V,V --in-flight 12)

refused("names 'V' more often than the cluster has it; it has 3" ${of} V,V,V,G,V)
refused("3 stages cannot be made of 2 layers; use 1 to 2" partition --profile graph.txt --cluster three.json --devices V,V,V)
refused("--devices names 'G' more often than the cluster has it; it has 1" ${of} G,G)
refused("--devices knows no 'W'. the nearest is" ${of} W)
refused("--devices V@2 names no node; nodes are numbered 0 to 1" ${of} V@2)
refused("--devices V@x names no node" ${of} V@x)
refused("--policy knows no 'minmax'. the nearest is 'min-max'" ${of} V --policy minmax)
refused("--any-order is for --policy min-max" ${of} V --policy even --any-order)
refused("--in-flight 0 cannot be used" ${of} V --in-flight 0)
refused("device 2 is of another kind than device 0" ${of} V,G --policy pipedream)
refused("partition needs --devices" partition --profile four.json --cluster three.json)
refused("partition needs --cluster" partition --profile four.json --devices V)
refused("partition needs --profile" partition --cluster three.json --devices V)
refused("presets are dapple-a:SxN" partition --profile four.json --cluster dapple-a:2 --devices V)
file(WRITE ${FOLDER}/bad.json "{\"nodes\": [\n{\"count\": 1, \"devices\": [{\"count\": 1, \"kind\": \"V\", \"memory_bytes\": -5, \"speed\": 1}]}]}")
refused("bad.json, line 2: nodes.0..devices.0..memory_bytes is -5" partition --profile four.json --cluster bad.json --devices V)
file(WRITE ${FOLDER}/circle.txt "node1 -- a -- ${meta}\nnode2 -- b -- ${meta}\n\tnode1 -- node2\n\tnode2 -- node1\n")
refused("circle.txt, line 3, column 1: 'node1 -- node2' is an edge of a cycle" partition --profile circle.txt --cluster three.json --devices V)
string(REPLACE "\"forward_s\": 1, \"backward_s\": 2, \"activation_bytes\": 10, \"parameter_bytes\": 5}]" "\"forward_s\": 4000, \"backward_s\": 2, \"activation_bytes\": 10, \"parameter_bytes\": 5}]" hour "{\"name\": \"four\", \"batch\": 8, \"device\": \"V\", \"layers\": [\n${layers}]}")
file(WRITE ${FOLDER}/hour.json "${hour}")
run(partition --profile hour.json --cluster three.json --devices V,V --json)
if(NOT "${result}" STREQUAL 0 OR NOT "${errors}" MATCHES "warning: hour.json: layer 3 .'d'. has forward_s = 4000 s, more than an hour")
  fail("should warn of the hour")
endif()
