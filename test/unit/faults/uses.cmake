# SPDX-License-Identifier: Apache-2.0
set(test_fibers TRUE)
set(test_optimized TRUE)
set(test_timeout_s 300)  # of all seeds, by ./run test --full
