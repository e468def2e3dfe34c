# SPDX-License-Identifier: Apache-2.0
# plan: iterations that can be computed by hand, every policy, models that do not fit, and bad input.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

# Four layers of one second forward and two backward; two devices, one in each node.
file(WRITE ${FOLDER}/four.json [[{"name": "four", "batch": 1, "device": "x", "layers": [
  {"name": "a", "forward_s": 1, "backward_s": 2, "activation_bytes": 2, "parameter_bytes": 8},
  {"name": "b", "forward_s": 1, "backward_s": 2, "activation_bytes": 2, "parameter_bytes": 8},
  {"name": "c", "forward_s": 1, "backward_s": 2, "activation_bytes": 2, "parameter_bytes": 8},
  {"name": "d", "forward_s": 1, "backward_s": 2, "activation_bytes": 2, "parameter_bytes": 8}]}
]])
function(write_cluster name memory rate)
  file(WRITE ${FOLDER}/${name}.json "{\"name\": \"${name}\", \"nodes\": [{\"count\": 2, \"devices\": [{\"count\": 1, \"kind\": \"x\", \"memory_bytes\": ${memory}, \"speed\": 1}]}], \"inter\": {\"alpha_s\": 0, \"bytes_per_s\": ${rate}}}")
endfunction()
write_cluster(pair 1000 1)
write_cluster(fast 1000 1e12)
write_cluster(small 66 1)
set(plan plan --profile four.json --cluster pair.json --batch 4)

# Straight: stages of 2 and 4 seconds, transfers of 2 seconds each way, four microbatches.
# Warm-up 2 + 2 + 2, steady 3 * 6, ending 4 + 2 + 4 = 34.
value(34.0 latency_s ${plan} --policy straight --json)
value(2 stages.1.first ${plan} --policy straight --json)
value(3 stages.1.last ${plan} --policy straight --json)
value(1 stages.1.devices.0 ${plan} --policy straight --json)
value(4 microbatches ${plan} --policy straight --json)
value(1 warmup.1 ${plan} --policy straight --json)
matches(0 "\"acr\": 0.33333.*\"alpha\": 0.66666" ${plan} --policy straight --json)
# Four bytes of state for each of 16, and one microbatch of 4 bytes in flight on the last stage.
value(68.0 memory_bytes.1 ${plan} --policy straight --json)
value(36.0 memory_bytes.1 ${plan} --policy straight --memory-factor sgd --json)
value(20.0 memory_bytes.1 ${plan} --policy straight --memory-factor 1 --json)
# One stage: two microbatches of two samples; gradients of 32 bytes take 32 s, of which the last
# backward hides 6: the first of four messages is there after 2 of 8 seconds.
value(2 microbatches ${plan} --policy data-parallel --json)
value(50.0 latency_s ${plan} --policy data-parallel --json)
# 48 seconds of work: the straight plan over one device.
matches(0 "\"speedup\": 1.41176" ${plan} --policy straight --json)
# Links that cost nothing: two devices share the work, and no plan beats that.
value(0.0 gap plan --profile four.json --cluster fast.json --batch 4 --policy data-parallel --memory-factor 1 --json)
foreach(policy dapple dapple-printed pipedream straight data-parallel auto)
  matches(0 "\"latency_s\": [0-9.]+,.*\"candidates\": [0-9]+,.*\"solve_s\": .*\"policy\": \"${policy}\"" ${plan} --policy ${policy} --json)
  matches(0 "stage +layers.*estimated.*simulated.*bound.*node 0  x " ${plan} --policy ${policy})
endforeach()
matches(0 "^<svg .*stage 0.*</svg>\n$" ${plan} --format svg)
matches(0 "\"recompute\": true" ${plan} --recompute --json)
# Memory does not grow with the microbatches: 30 million in 300 MB.
execute_process(COMMAND sh -c "ulimit -v 300000; exec \"$0\" \"$@\"" ${PROGRAM} plan --profile four.json --cluster fast.json
                        --batch 30000000 --policy straight --memory-factor 1
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors WORKING_DIRECTORY ${FOLDER} TIMEOUT 120)
set(called "plan --batch 30000000")
if(NOT result EQUAL 0)
  fail("should plan in little memory")
endif()
matches(0 "node 0  V100  0-511: 0\nnode 1  V100  512-1023: 0\n$"
        plan --profile four.json --cluster dapple-a:2x512 --batch 16384 --policy data-parallel)
matches(0 "0-3 +0-15.*16 samples in 1 microbatch, .*node 1  V100  0 0 0 0 0 0 0 0" plan --profile four.json --cluster dapple-a:2x8 --batch 16)

# A graph.txt does not say for how many samples its times are; shares are whole samples.
set(meta "forward_compute_time=1000, backward_compute_time=2000, activation_size=2, parameter_size=8")
file(WRITE ${FOLDER}/graph.txt "node1 -- a -- ${meta}\nnode2 -- aux -- ${meta}\nnode3 -- b -- ${meta}\nnode4 -- c -- ${meta}\n\tnode1 -- node2\n\tnode1 -- node3\n\tnode3 -- node4\n")
set(graph plan --profile graph.txt --cluster fast.json --batch 12 --policy straight)
refused("graph.txt does not say for how many samples its times and sizes are. give --profile-batch N" ${graph})
refused("--profile-batch 0 " ${graph} --profile-batch 0)
refused("four.json says its batch itself. leave --profile-batch out" ${plan} --profile-batch 2)
run(${graph} --profile-batch 4)
if(NOT "${result}" STREQUAL 0 OR NOT output MATCHES "12 samples in 3 microbatches.*profile    of 4 samples, as --profile-batch says\n" OR
   NOT errors MATCHES "^warning: graph.txt: node2 of line 2 ends a branch that never joins that of node4 of line 4; left out of the chain: 1 layer of 3 s\n$")
  fail("should say what the profile is, and what is left out")
endif()
value(12 microbatches ${graph} --profile-batch 1 --json)
matches(0 "rounded    a replica of stage 0 has 1.50 samples of a microbatch on average. its times are for 2\n" plan --profile four.json --cluster fast.json --batch 3 --policy data-parallel)

# No plan fits: exit code 1 and one line with layer, resource, numbers and a remedy.
run(plan --profile four.json --cluster small.json --batch 4 --policy straight)
if(NOT "${result}|${output}" STREQUAL "1|" OR NOT "${errors}" MATCHES "^stagger: no plan fits: the stage of layer . .'.'. needs 68 bytes of memory[^\n]*has 66 bytes; it fits with [^\n]+\n$")
  fail("should say what is missing")
endif()

matches(0 "BERT-48 +64 +A +8:8 +23:25 +0.06 +8:8.*XLNet-36 +128 +A +8:8 +18:18 +0.03 +8:8" plan --paper dapple)
matches(0 "VVVV" plan --paper hetpipe)
refused("--paper knows no 'dappel'. the nearest is 'dapple'" plan --paper dappel)
refused("--paper brings its own models and clusters; leave --batch out" plan --paper hetpipe --batch 4)
refused("--paper brings its own models and clusters; leave --policy out" plan --paper dapple --policy auto)
refused("--paper hetpipe has no measured profiles; leave --profiles out" plan --paper hetpipe --profiles .)
refused("needs --profile FILE" plan)
refused("needs --cluster FILE" plan --profile four.json)
refused("needs --batch GBS" plan --profile four.json --cluster pair.json)
refused("--batch 0 " plan --profile four.json --cluster pair.json --batch 0)
refused("a batch of 1000000000 samples cannot be planned. give at most 33554432" plan --profile four.json --cluster pair.json --batch 1000000000)
refused("--microbatch 0 " ${plan} --microbatch 0)
refused("'dapper'. the nearest is 'dapple'" ${plan} --policy dapper)
refused("--memory-factor lots" ${plan} --memory-factor lots)
refused("--memory-factor -1" ${plan} --memory-factor -1)
refused("no cluster 'dapple-z:2'" plan --profile four.json --cluster dapple-z:2 --batch 4)
refused("cannot read 'none.json'" plan --profile none.json --cluster pair.json --batch 4)
