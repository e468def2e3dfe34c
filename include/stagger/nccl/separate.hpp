// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What STAGGER_SEPARATE_COMPILATION_NCCL leaves out, once for a program:
///         a pipeline over processes with a GPU each.

#include <stagger/engine/make_session.hpp>
#include <stagger/nccl/gpus.hpp>

template std::shared_ptr<stagger::detail::Session> stagger::detail::make_session(
    stagger::nccl::Gpus const&, List<Layer>, Setup const&);
