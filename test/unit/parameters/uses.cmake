# SPDX-License-Identifier: Apache-2.0
set(test_one_thread TRUE)
