# SPDX-License-Identifier: Apache-2.0
# Every staleness model trains both networks on both devices. In virtual time all output has the same bytes every time.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

# runs(<pattern> ARGS...): exit code 0, and standard output matches the pattern.
macro(runs pattern)
  run(${ARGN})
  expect_result(0)
  expect(output "${pattern}")
endmacro()

set(tiny --batch 2 --steps 4 --in-flight 2)
foreach(model vgg gpt)
  foreach(sync bsp asp ssp r2sp wsp)
    runs("worker +[a-z]+/s +waiting.*\n +0 .* 4 +[0-9.]+\n +1 .* 4 +[0-9.]+\n.*held-out loss [0-9.]+\n$"
         --model ${model} --sync ${sync} --device threads --workers 2 --stages 2 ${tiny})
    runs("worker +GPUs +images/s.*\n +3  [VRGQ]+ .*held-out loss [0-9.]+\n$" --model ${model} --sync ${sync} ${tiny})
    set(first "${output}")
    runs("." --model ${model} --sync ${sync} ${tiny})
    if(NOT output STREQUAL first)
      fail("should print the same as before:\n${first}")
    endif()
  endforeach()
endforeach()
foreach(args "--distance;2;--exact" "--allocation;np" "--allocation;hd" "--parameters;local" "--cluster;resnet-152;--link;2")
  runs("worker +GPUs" ${tiny} ${args})
endforeach()
runs("worker  images/s" ${tiny} --workers 3 --stages 1)
