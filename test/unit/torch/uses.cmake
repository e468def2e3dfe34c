# SPDX-License-Identifier: Apache-2.0
set(test_links stagger::torch)
set(test_uninstrumented TRUE)
