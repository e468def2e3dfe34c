# SPDX-License-Identifier: Apache-2.0
set(test_links stagger_cuda_stand_in)
set(test_timeout_s 120)
