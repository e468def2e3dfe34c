# SPDX-License-Identifier: Apache-2.0
set(test_links example_layers)
set(test_own_flags TRUE)
