# SPDX-License-Identifier: Apache-2.0
# A pipeline and one device have the same bits after every step.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

foreach(schedule gpipe 1f1b)
  foreach(recompute "" --recompute)
    foreach(shape "1;1" "2;1" "2;2" "3;2" "5;4")
      list(GET shape 0 stages)
      list(GET shape 1 threads)
      gpt(${tiny} --steps 3 --compare --schedule ${schedule} --stages ${stages} --threads ${threads} ${recompute})
      expect_result(0)
      expect(output "bit-equal to one device after every step")
    endforeach()
  endforeach()
endforeach()

# One microbatch; as many as sequences; a run that goes on from a checkpoint.
foreach(microbatches 1 7)
  gpt(${tiny} --steps 3 --compare --microbatches ${microbatches} --stages 3)
  expect_result(0)
endforeach()
gpt(${tiny} --steps 4 --stop-at 2 --checkpoint ${FOLDER}/kept)
expect_result(0)
gpt(${tiny} --steps 4 --resume --checkpoint ${FOLDER}/kept --compare --stages 3)
expect_result(0)
expect(output "bit-equal")
