# SPDX-License-Identifier: Apache-2.0
# Ranks in processes compute the same bits as ranks on threads. START is the command line of mpirun, up to the number of
# processes.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

macro(gpt_over processes)
  execute_process(COMMAND ${START} ${processes} ${PROGRAM} ${ARGN} --device mpi RESULT_VARIABLE result
                  OUTPUT_VARIABLE output ERROR_VARIABLE errors WORKING_DIRECTORY ${FOLDER} TIMEOUT 120)
  string(JOIN " " called ${ARGN})
endmacro()

set(last step-000000006.stagger)
set(short ${tiny} --batch 8 --microbatches 4 --steps 6)

# Two stages with two replicas each: four ranks.
run(${short} --replicas 2 --threads 2 --checkpoint ${FOLDER}/threads)
expect_result(0)
string(REGEX MATCH "held-out loss [^\n]*" loss "${output}")
gpt_over(4 ${short} --replicas 2 --checkpoint ${FOLDER}/processes --sample 5)
expect_result(0)
expect(errors "2 stages on 4 processes")
expect(output "${loss}")
expect_same(${FOLDER}/threads/${last} ${FOLDER}/processes/${last})

# The same with two ranks in each process, and two stages on each rank.
gpt_over(2 ${short} --replicas 2 --stages 4 --chunks 2 --schedule interleaved --checkpoint ${FOLDER}/two)
expect_result(0)
expect_same(${FOLDER}/threads/${last} ${FOLDER}/two/${last})

# With sharded optimizer state the bits are the same, also after resuming with another number of processes.
gpt_over(4 ${short} --replicas 2 --shard-optimizer --checkpoint ${FOLDER}/shards --stop-at 3)
expect_result(0)
gpt_over(2 ${short} --replicas 2 --shard-optimizer --checkpoint ${FOLDER}/shards --resume)
expect_result(0)
expect_same(${FOLDER}/threads/${last} ${FOLDER}/shards/${last})
run(${short} --replicas 2 --shard-optimizer)
expect(errors "add --replicas 2 --device mpi, or leave it out: on threads replicas have one state")

# Two groups of two that share each half block: each rank in a process of its own, or two in one.
run(${short} --microbatches 2 --stages 1 --tensor-parallel 2 --replicas 2 --checkpoint ${FOLDER}/group --sample 5)
expect_result(0)
string(REGEX MATCH "held-out loss [^\n]*" loss "${output}")
gpt_over(4 ${short} --microbatches 2 --stages 1 --tensor-parallel 2 --replicas 2 --checkpoint ${FOLDER}/members --sample 5)
expect_result(0)
expect(output "${loss}")
expect_same(${FOLDER}/group/${last} ${FOLDER}/members/${last})
gpt_over(2 ${short} --microbatches 2 --stages 1 --tensor-parallel 2 --replicas 2 --shard-optimizer --recompute --checkpoint ${FOLDER}/halves)
expect_result(0)
expect_same(${FOLDER}/group/${last} ${FOLDER}/halves/${last})

# Every step compared with one device; stopped and resumed with another number of processes.
run(${short} --checkpoint ${FOLDER}/plain)
expect_result(0)
gpt_over(3 ${short} --stages 3 --compare --checkpoint ${FOLDER}/parts --stop-at 4)
expect_result(0)
expect(output "stopped after step 4 of 6; --resume goes on")
gpt_over(2 ${short} --compare --checkpoint ${FOLDER}/parts --resume)
expect_result(0)
expect(output "bit-equal to one device after every step")
expect_same(${FOLDER}/plain/${last} ${FOLDER}/parts/${last})

# Several processes without --device mpi, each of which would train the whole model.
execute_process(COMMAND ${START} 2 ${PROGRAM} ${short} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors
                WORKING_DIRECTORY ${FOLDER} TIMEOUT 120)
list(JOIN short " " called)
expect_result(2)
expect(errors "gpt: [^\n]* started 2 processes, and each would train the whole model; add --device mpi ")
if(NOT output STREQUAL "")
  fail("should print nothing on standard output")
endif()

# More processes than ranks.
gpt_over(3 ${short})
if("${result}" STREQUAL "0")
  fail("should not have run")
endif()
expect(errors "MPI started 3 processes for 2 ranks; [^\n]* give --replicas")

# An error that all processes have is printed once.
foreach(bad "--stages 2" "--layers many" "--text missing.txt" "--stages 9")
  separate_arguments(bad)
  gpt_over(3 ${short} ${bad})
  string(REGEX MATCHALL "gpt: " said "${errors}")
  if(NOT said STREQUAL "gpt: ")
    fail("should say once what is wrong")
  endif()
endforeach()
