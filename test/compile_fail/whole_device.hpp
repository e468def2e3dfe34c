// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device that has every trait with functions, and all of these, for programs in which one is
// missing.

#include <memory>

#include "half.hpp"

enum class Part {
  none,
  constructor,
  load,
  drive,
  fail,
  spare_places,
  parameter_memory,
  takes_layer_types,
  captures,
  runs_ahead,
  starts_together,
  gathers_parameters,
  holds_own_stages,
  shares_time,
  carry
};

template <Part function, Part trait = Part::none> struct Without {
  using policy_tag = sg::DeviceTag;
  template <Part part> static constexpr bool has = function != part;
  struct Backend {
    Backend(Without const&, sg::engine::Machine&, int)
      requires has<Part::constructor>;
    void load(std::vector<int> const&)
      requires has<Part::load>;
    void drive()
      requires has<Part::drive>;
    bool start(std::coroutine_handle<>);
    void fail(std::exception_ptr) noexcept
      requires has<Part::fail>;
    int capture(bool)
      requires has<Part::captures>;
    bool runs_ahead() const;
    std::size_t slots() const;
    void enqueue(std::size_t)
      requires has<Part::runs_ahead>;
    bool finished(std::size_t);
    std::exception_ptr await(std::size_t, std::int64_t) noexcept;
    double results(std::size_t, double*) const;
    int skipped(std::size_t) const;
    void require_present() const;
    void open(std::uint32_t, bool = false)
      requires has<Part::starts_together>;
    void complete(sg::detail::StepArguments&, double*);
    void give_up(std::exception_ptr) noexcept;
    bool must_load() const;
    void gather_parameters(int)
      requires has<Part::gathers_parameters>;
    bool visit_parameters(int, sg::engine::ParameterVisit const&)
      requires has<Part::holds_own_stages>;
    void begin() noexcept
      requires has<Part::shares_time>;
    bool drive_together();
    static std::shared_ptr<sg::detail::ParameterLink> carry(
        Without const&, std::shared_ptr<sg::detail::ParameterLink>)
      requires has<Part::carry>;
  };
  template <Part part> static constexpr bool is = trait != part;
  static constexpr sg::DeviceTraits traits{.spare_places = is<Part::spare_places>,
                                           .parameter_memory = is<Part::parameter_memory>,
                                           .takes_layer_types = is<Part::takes_layer_types>,
                                           .holds_own_stages = is<Part::holds_own_stages>,
                                           .gathers_parameters = is<Part::gathers_parameters>,
                                           .runs_ahead = is<Part::runs_ahead>,
                                           .captures = is<Part::captures>,
                                           .shares_time = is<Part::shares_time>,
                                           .starts_together = is<Part::starts_together>};
  int places() const { return 1; }
  int spare_places(int) const
    requires has<Part::spare_places>;
  sg::detail::ParameterMemory parameter_memory() const
    requires has<Part::parameter_memory>;
  template <class Layers>
  void use_layers()
    requires has<Part::takes_layer_types>;
};
