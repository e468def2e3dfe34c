# SPDX-License-Identifier: Apache-2.0
# Groups in processes of MPI, which the program starts itself, print what they print on threads.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

refused("--threads has no use in processes of MPI" --device mpi --threads 2)
refused("no file 'missing/data_batch_1.bin'" --workers 2 --mp 2 --device mpi --data missing)

refused("cannot write 'missing/split.svg'" --mp 2 --device mpi --picture missing/split.svg)  # which only one process writes

foreach(more "--stages;1;--mp;2;--microbatches;1" "--stages;2;--mp;2;--microbatches;3;--schedule;zb-h1")
  set(seen)
  foreach(device threads mpi)
    run(--width 1 --batch 6 --steps 2 --workers 2 --threshold 0 --evaluate 1 --device ${device} ${more})
    expect_result(0)
    string(REGEX REPLACE " in [^\n]+" "" line "${output}")
    list(APPEND seen "${line}")
  endforeach()
  list(REMOVE_DUPLICATES seen)
  list(LENGTH seen different)
  if(different GREATER 1)
    fail("threads and processes should print the same: ${seen}")
  endif()
endforeach()

# Groups that --period averages have a process each, and the server lies in all of them.
foreach(update accumulate each-pass)
  set(seen)
  foreach(device threads mpi)
    run(--width 1 --batch 16 --steps 4 --stages 2 --microbatches 2 --workers 4 --mp 2 --threshold 0 --period 2
        --evaluate 2 --update ${update} --device ${device})
    expect_result(0)
    string(REGEX REPLACE " in [^\n]+" "" line "${output}")
    list(APPEND seen "${line}")
  endforeach()
  list(REMOVE_DUPLICATES seen)
  list(LENGTH seen different)
  if(different GREATER 1)
    fail("groups in processes should print what groups on threads do: ${seen}")
  endif()
endforeach()

# Pipelines of several group sizes, one after the other in the same processes.
run(--width 1 --batch 6 --steps 2 --stages 1 --microbatches 2 --threshold 0 --mp 2 --device mpi --compare)
expect_result(0)
expect(output "\n +1 +[0-9]+ +0 .*\n +2 +[0-9]+ +[1-9]")
