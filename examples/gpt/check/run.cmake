# SPDX-License-Identifier: Apache-2.0
# What the checks share. Each is called with -DTEXT=<a text of a few KiB> as well.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

# A model that takes about a millisecond per step.
set(tiny --text ${TEXT} --layers 3 --width 16 --heads 2 --context 12 --batch 7 --microbatches 5 --sample 0 --output none)
