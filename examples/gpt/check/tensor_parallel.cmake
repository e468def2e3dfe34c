# SPDX-License-Identifier: Apache-2.0
# Ranks that share each half block: the same bits however they are run, and checkpoints that any number of them can read.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(short --text ${TEXT} --layers 2 --width 24 --heads 3 --context 12 --batch 8 --microbatches 2 --steps 20 --output none)
set(last step-000000020.stagger)

run(${short} --stages 1 --sample 0 --checkpoint ${FOLDER}/one)
expect_result(0)
string(REGEX MATCH "held-out loss [0-9.]+" loss "${output}")
run(${short} --stages 1 --threads 1 --tensor-parallel 2 --sample 5 --checkpoint ${FOLDER}/group)
expect_result(0)
expect(errors "6 layers, 1 stage on 1 thread, 1f1b, tensor-parallel 2")
expect(output "${loss}")

# Stages that begin at either half, schedules, threads and recomputation change no bit.
set(number 0)
foreach(how "--stages 3 --threads 2" "--stages 6 --schedule gpipe --recompute" "--stages 4 --schedule zb-h1"
        "--stages 4 --schedule interleaved --chunks 2 --threads 1")
  separate_arguments(how)
  math(EXPR number "${number} + 1")
  run(${short} ${how} --tensor-parallel 2 --sample 0 --checkpoint ${FOLDER}/${number})
  expect_result(0)
  expect_same(${FOLDER}/group/${last} ${FOLDER}/${number}/${last})
endforeach()

# Replicas of groups; stopped, and resumed by a group of another size.
run(${short} --tensor-parallel 2 --replicas 2 --sample 0 --checkpoint ${FOLDER}/parts --stop-at 10)
expect_result(0)
expect(errors "1f1b, replicas 2:2, tensor-parallel 2")
run(${short} --tensor-parallel 3 --sample 0 --checkpoint ${FOLDER}/parts --resume --stop-at 15)
expect_result(0)
expect(errors "other settings \\(replicas 2:2, now not; tensor-parallel 2, now 3\\): ")
run(${short} --sample 0 --checkpoint ${FOLDER}/parts --resume)
expect_result(0)
expect(output "${loss}")

refused("--tensor-parallel 0 " ${short} --tensor-parallel 0)
refused("--tensor-parallel 4 .*use 1 to 3" ${short} --tensor-parallel 4)
refused("--tensor-parallel 3 leaves some without a sequence of each of 4 microbatches; use a --batch of at least 12" ${short}
        --tensor-parallel 3 --microbatches 4)
refused("--replicas 2 of --tensor-parallel 3 leave some without a sequence" ${short} --tensor-parallel 3 --replicas 2)
refused("--compare cannot follow --tensor-parallel 2" ${short} --tensor-parallel 2 --compare)
refused("--tensor-parallel 2 cannot go with --precision bf16" ${short} --tensor-parallel 2 --device cuda --precision bf16)
refused("--plan auto cannot go with --tensor-parallel" --tensor-parallel 2 --plan auto)
