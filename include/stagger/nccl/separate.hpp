// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The definitions that STAGGER_SEPARATE_COMPILATION_NCCL leaves out: a pipeline over
///         processes with a GPU each. Include it in one source file of a program.

#include <stagger/engine/make_session.hpp>
#include <stagger/nccl/gpus.hpp>

template std::shared_ptr<stagger::detail::Session> stagger::detail::make_session(
    stagger::nccl::Gpus const&, List<Layer>, Setup&);
