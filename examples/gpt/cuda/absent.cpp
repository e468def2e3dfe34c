// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/error.hpp>

#include "train.hpp"

namespace gpt {

Outcome train_on_gpu(Settings const&, char const*) {
  throw stagger::Error(stagger::Errc::bad_configuration,
                       "this program was built without CUDA; build it where nvcc and cuBLAS are, "
                       "or leave --device cuda out");
}

}  // namespace gpt
