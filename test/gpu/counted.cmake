# SPDX-License-Identifier: Apache-2.0
# Sends the calls of the CUDA runtime that throughput.cpp counts through it.
function(count_calls target)
  foreach(call IN ITEMS EventCreateWithFlags Malloc MallocHost MallocFromPoolAsync StreamSynchronize)
    target_link_options(${target} PRIVATE -Wl,--wrap=cuda${call})
  endforeach()
endfunction()
