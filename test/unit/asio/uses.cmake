# SPDX-License-Identifier: Apache-2.0
set(test_links stagger::host)
set(test_timeout_s 180)  # of all cases, by ./run test --full
