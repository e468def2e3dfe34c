# SPDX-License-Identifier: Apache-2.0
# merge: iterations that can be computed by hand, both formats of a profile, the published figures, and bad
# input.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

# Two layers of one second each, and a message of b bytes takes 0.5 + 0.5 b.
file(WRITE ${FOLDER}/two.json [[{"name": "two", "batch": 1, "device": "x", "meta": {}, "layers": [
  {"name": "a", "forward_s": 0, "backward_s": 1, "activation_bytes": 0, "parameter_bytes": 1},
  {"name": "b", "forward_s": 0, "backward_s": 1, "activation_bytes": 0, "parameter_bytes": 2}]}
]])
set(line --startup 0.5 --per-byte 0.5)
# In two messages: b from 1 to 2.5, a from 2.5 to 3.5. In one: 2 to 4.
value(3.5 0.iteration_s merge --profile two.json ${line} --policy layerwise --json)
value(4.0 0.iteration_s merge --profile two.json ${line} --policy single --json)
value(2.0 0.exposed_s merge --profile two.json ${line} --policy single --json)
value(3.5 0.iteration_s merge --profile two.json ${line} --policy optimal --json)
value(2 0.groups.0.0 merge --profile two.json ${line} --policy layerwise --json)
value(2 0.groups.0.1 merge --profile two.json ${line} --policy layerwise --json)
value(1 0.groups.1.0 merge --profile two.json ${line} --policy layerwise --json)
value(1 0.groups.0.1 merge --profile two.json ${line} --policy single --json)
value(4.0 0.iteration_s merge --profile two.json ${line} --policy bucket:3 --json)
value(3.5 0.iteration_s merge --profile two.json ${line} --policy bucket:2 --json)
value(bucket:26214400 4.policy merge --profile two.json ${line} --json)
# Ring of two: 2 (N-1) alpha + (N-1)/N (2 beta + gamma) bytes = 2 + 0.5 (2 + 2) 3 = 8 behind the 2 of compute.
set(ring --nodes 2 --alpha 1 --beta 1 --gamma 2)
value(10.0 0.iteration_s merge --profile two.json ${ring} --policy single --json)
value(10.0 0.iteration_s merge --profile two.json ${ring} --policy single --algorithm halving-doubling --json)
# Tree: 2 alpha + (2 beta + gamma) bytes; recursive doubling: alpha + (beta + gamma) bytes.
value(16.0 0.iteration_s merge --profile two.json ${ring} --policy single --algorithm tree --json)
value(12.0 0.iteration_s merge --profile two.json ${ring} --policy single --algorithm recursive-doubling --json)

# PipeDream's graph: milliseconds, an input node that is not a layer, order given by edges.
file(WRITE ${FOLDER}/graph.txt "node2 -- ReLU(a, b=1) -- forward_compute_time=0.000, backward_compute_time=1000.000, activation_size=[1.0; 2.0], parameter_size=2.000\nnode0 -- Input0 -- forward_compute_time=5.000, backward_compute_time=0.000, activation_size=1.0, parameter_size=0.000\nnode1 -- Conv2d(1) -- forward_compute_time=0.000, backward_compute_time=1000.000, activation_size=1.0, parameter_size=1.000\n\tnode0 -- node1\n\tnode1 -- node2")
foreach(policy layerwise single)
  run(merge --profile two.json ${line} --policy ${policy} --json)
  prints("${output}" merge --profile graph.txt ${line} --policy ${policy} --json)
endforeach()

matches(0 "start-up of the ring, 8 nodes +633.64 us +633.64 us.*ResNet-50, 64 nodes: greedy over layerwise +1.750" merge --paper mg-wfbp)
value(1.78 3.published merge --paper mg-wfbp --json)
if(DEFINED ENV{STAGGER_PROFILES} AND NOT "$ENV{STAGGER_PROFILES}" STREQUAL "")
  matches(0 "GoogleNet, 64 nodes: greedy over layerwise +1.780 +[0-9.]+ +1.783.*greedy over single +1.350 +[0-9.]+ +1.341.*optimal over greedy +- +[0-9.]+ +1.151"
          merge --paper mg-wfbp)
endif()

refused("--paper knows no 'mg-wfpb'. the nearest is 'mg-wfbp'" merge --paper mg-wfpb)
refused("--paper brings its own layers, network and groupings; leave --nodes out" merge --paper mg-wfbp --nodes 8)
refused("--paper brings its own layers, network and groupings; leave --policy out" merge --paper mg-wfbp --policy single)
refused("needs --nodes" merge --profile two.json)
refused("--per-byte is missing" merge --profile two.json --startup 1)
refused("--gamma is missing" merge --profile two.json --nodes 2 --alpha 1 --beta 1)
refused("--nodes and --startup both" merge --profile two.json ${line} --nodes 2)
refused("--alpha -1 " merge --profile two.json --nodes 2 --alpha -1 --beta 1 --gamma 1)
refused("--startup nan " merge --profile two.json --startup nan --per-byte 1)
refused("power of two" merge --profile two.json --nodes 6 --alpha 1 --beta 1 --gamma 1 --algorithm halving-doubling)
refused("'rings'. the nearest is 'ring'" merge --profile two.json ${ring} --algorithm rings)
refused("'optimum'. the nearest is 'optimal'" merge --profile two.json ${line} --policy optimum)
refused("bucket:0" merge --profile two.json ${line} --policy bucket:0)
file(WRITE ${FOLDER}/bad.json "{\"layers\": [\n  {\"forward_s\": 1,, }]}")
refused("bad.json, line 2, column 19: ', }" merge --profile bad.json ${line})
file(WRITE ${FOLDER}/bad.json "{\"layers\": [{\"forward_s\": 0, \"backward_s\": -1, \"parameter_bytes\": 1}]}")
refused("bad.json, line 1: layers.0..backward_s is -1" merge --profile bad.json ${line})
file(WRITE ${FOLDER}/bad.json "{\"layers\": [{\"forward_s\": 0, \"backward_s\": 1}]}")
refused("bad.json, line 1: layers.0. has no 'parameter_bytes'" merge --profile bad.json ${line})
file(WRITE ${FOLDER}/bad.json "{\"layers\": []}")
refused("bad.json, line 1: layers is ..; give one or more" merge --profile bad.json ${line})
file(WRITE ${FOLDER}/bad.txt "node1 -- A -- forward_compute_time=1, backward_compute_time=-2, parameter_size=3\n")
refused("bad.txt, line 1, column 61: '-2" merge --profile bad.txt ${line})
