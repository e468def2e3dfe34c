// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The definitions that STAGGER_SEPARATE_COMPILATION leaves out: the engine, its threads,
///         its virtual clock. Include it in one source file of a program, and define that macro for
///         all others, which then compile in less than half the time; or let CMake do both:
///         stagger_add_separate(<target>).

#include <stagger/engine/append_layers.hpp>
#include <stagger/engine/detail/exchange/overlapped_exchange.hpp>
#include <stagger/engine/detail/exchange/step_exchange.hpp>
#include <stagger/engine/detail/exchange/stream_exchange.hpp>
#include <stagger/engine/detail/gradient_groups.hpp>
#include <stagger/engine/make_session.hpp>
#include <stagger/host/detail/threads_backend.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/sim/detail/virtual_clock_backend.hpp>
#include <stagger/sim/virtual_clock.hpp>

namespace stagger {

template schedule::Table schedule::detail::catalog_table(std::string_view, void const*, Shape);
template schedule::Table schedule::detail::table_of_named(schedule::Named const&, Shape);
template void schedule::detail::require_legal(schedule::Table const&);

template void detail::adopt_parameter(List<detail::ParameterDeclaration>&, Parameter<float>&, int);
template void detail::adopt_parameter(List<detail::ParameterDeclaration>&, Parameter<double>&, int);
template void detail::LayerParameters::update(optimizer::AdamW const&,
                                              detail::UpdateStep const&) noexcept;
template void detail::LayerParameters::update(optimizer::Sgd const&,
                                              detail::UpdateStep const&) noexcept;

template detail::MakePart detail::exchange_policy<detail::LocalExchange>;
template detail::MakePart detail::exchange_policy<detail::OverlappedExchange>;
template detail::MakePart detail::exchange_policy<detail::StepExchange>;
template detail::MakePart detail::gradient_group_policy<detail::WithServer>;
template detail::MakePart detail::exchange_policy<detail::StreamExchange>;

template struct detail::MachineFacts<detail::Machine>;
template detail::VersionPasses const* detail::version_passes<StalenessModel>() noexcept;

template std::shared_ptr<detail::Session> detail::make_session(host::Threads const&,
                                                               List<detail::Layer>, detail::Setup&);
template std::shared_ptr<detail::Session> detail::make_session(sim::VirtualClock const&,
                                                               List<detail::Layer>, detail::Setup&);

}  // namespace stagger
