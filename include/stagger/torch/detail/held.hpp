// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Modules whose type is erased: what makes a copy, and what calls forward.

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <stagger/core/error.hpp>
#include <stagger/torch/detail/random.hpp>
#include <stagger/torch/value.hpp>

namespace stagger::torch::detail {

using ::torch::nn::AnyModule;
using ::torch::nn::Module;

class Held {
 public:
  Held() = default;
  Held(Held const&) = delete;
  Held& operator=(Held const&) = delete;
  virtual ~Held() = default;
  virtual at::Tensor forward(at::Tensor& x) = 0;
  [[nodiscard]] virtual Module& module() const = 0;
  /// A module of its own with the same parameters and buffers.
  [[nodiscard]] virtual std::unique_ptr<Held> copy() const = 0;
};

template <class M>
concept GivesTensor = requires(M& module, at::Tensor& x) {
  { module.forward(x) } -> std::convertible_to<at::Tensor>;
};
/// Whether M, or a class below it, has a clone() other than Module's, which throws.
template <class M>
concept HasClone = !std::same_as<decltype(&M::clone), decltype(&Module::clone)>;

template <class H>
concept Holder = requires(H const& holder) {
  typename H::ContainedType;
  holder.ptr();
};
template <class T> inline constexpr bool is_shared_module = false;
template <class M> inline constexpr bool is_shared_module<std::shared_ptr<M>> = true;

/// The module of a holder, or of a pointer to it.
template <class G> [[nodiscard]] auto pointer_to(G const& given) {
  if constexpr (Holder<G>) {
    return given.is_empty() ? nullptr : given.ptr();
  } else {
    static_assert(is_shared_module<G>,
                  "stagger: a torch::Stage is made from the holder of a module, a std::shared_ptr "
                  "to one, an AnyModule, or a function that returns one of the first two");
    return given;
  }
}
[[gnu::cold]] inline void require_module(void const* module) {
  if (module == nullptr)
    raise(Errc::bad_configuration,
          "a torch::Stage was made from an empty holder; give it a module, as with Linear(2, 3)");
}

/// Lets a module be as another of its type: what is trained, buffers, and what is in eval mode.
[[gnu::cold]] inline void make_alike(Module const& from, Module& to) {
  auto const parameters = from.parameters();
  auto const buffers = from.buffers();
  auto own = to.parameters();
  auto own_buffers = to.buffers();
  bool alike = parameters.size() == own.size() && buffers.size() == own_buffers.size();
  for (std::size_t i = 0; alike && i < own.size(); ++i)
    alike = parameters[i].sizes() == own[i].sizes();
  for (std::size_t i = 0; alike && i < buffers.size(); ++i)
    alike = buffers[i].sizes() == own_buffers[i].sizes();
  if (!alike)
    raise(Errc::bad_configuration, "a copy of ", from.name(),
          " has other parameters or buffers; let its clone(), or the function of the torch::Stage, "
          "make a module of the same extents each time");
  bool apart = true;
  for (std::size_t i = 0; i < own.size(); ++i)
    apart = apart && !(own[i].numel() != 0 && own[i].is_alias_of(parameters[i]));
  for (std::size_t i = 0; i < buffers.size(); ++i)
    apart = apart && !(buffers[i].numel() != 0 && own_buffers[i].is_alias_of(buffers[i]));
  if (!apart)
    raise(Errc::bad_configuration, "a copy of ", from.name(),
          " has the same parameters or buffers in memory; let its clone(), or the function of the "
          "torch::Stage, make all modules inside it anew");
  at::NoGradGuard const none;
  for (std::size_t i = 0; i < own.size(); ++i)
    own[i].set_requires_grad(parameters[i].requires_grad());
  for (std::size_t i = 0; i < buffers.size(); ++i) own_buffers[i].copy_(buffers[i]);
  auto const modes = from.modules();
  auto const modules = to.modules();  // each before its children
  for (std::size_t i = 0; i < modes.size() && i < modules.size(); ++i)
    if (modules[i]->is_training() != modes[i]->is_training())
      modules[i]->train(modes[i]->is_training());
}

/// What `clone` returns. The global generator is afterwards as it was, though modules draw their
/// first values when they are made.
/// @throws Error  bad_configuration for a module, or one inside it, that has no clone()
template <class Clone> [[nodiscard]] auto cloned(Module const& module, Clone clone) {
  SeededGlobally const generator(0);
  try {
    return clone();
  } catch (c10::Error const& error) {
    raise(
        Errc::bad_configuration, module.name(), " cannot be copied: ", first_line(error),
        "; derive each module inside it from torch::nn::Cloneable, or give torch::Stage a function "
        "that makes it: Stage{[] { return Mine(8); }}");
  }
}

template <class M> class HeldModule final : public Held {
  static_assert(GivesTensor<M>,
                "stagger: the forward of a torch::Stage's module takes one at::Tensor and returns "
                "one; write a module around this one that does");

 public:
  explicit HeldModule(std::shared_ptr<M> module) : module_(std::move(module)) {
    require_module(module_.get());
  }
  at::Tensor forward(at::Tensor& x) override { return module_->forward(x); }
  [[nodiscard]] Module& module() const override { return *module_; }
  [[nodiscard]] std::unique_ptr<Held> copy() const override {
    static_assert(HasClone<M>,
                  "stagger: this module cannot be copied: derive it from torch::nn::Cloneable, or "
                  "give torch::Stage a function that makes it: Stage{[] { return Mine(8); }}");
    auto own = std::dynamic_pointer_cast<M>(cloned(*module_, [&] { return module_->clone(); }));
    if (own == nullptr)
      raise(Errc::bad_configuration, "clone() of ", module_->name(),
            " made a module of another type; derive it from torch::nn::Cloneable of its own type");
    make_alike(*module_, *own);
    return std::make_unique<HeldModule>(std::move(own));
  }

 private:
  std::shared_ptr<M> module_;
};

class HeldAny final : public Held {
 public:
  explicit HeldAny(AnyModule module) : module_(std::move(module)) {
    require_module(module_.is_empty() ? nullptr : module_.ptr().get());
    of_any_ = module_.ptr();
  }
  at::Tensor forward(at::Tensor& x) override { return module_.forward(x); }
  [[nodiscard]] Module& module() const override { return *of_any_; }
  [[nodiscard]] std::unique_ptr<Held> copy() const override {
    auto own = std::make_unique<HeldAny>(cloned(*of_any_, [&] { return module_.clone(); }));
    make_alike(*of_any_, *own->of_any_);
    return own;
  }

 private:
  AnyModule module_;
  std::shared_ptr<Module> of_any_;
};

/// A module that a function makes, one for each copy.
template <class Make> class HeldMade final : public Held {
  using M = typename decltype(pointer_to(std::declval<Make&>()()))::element_type;
  static_assert(GivesTensor<M>,
                "stagger: the forward of a torch::Stage's module takes one at::Tensor and returns "
                "one; write a module around this one that does");

 public:
  explicit HeldMade(Make make) : make_(std::move(make)), module_(pointer_to(make_())) {
    require_module(module_.get());
  }
  at::Tensor forward(at::Tensor& x) override { return module_->forward(x); }
  [[nodiscard]] Module& module() const override { return *module_; }
  [[nodiscard]] std::unique_ptr<Held> copy() const override {
    SeededGlobally const generator(0);  // which modules draw from when they are made
    auto other = std::make_unique<HeldMade>(make_);
    if (other->module_ == module_)
      raise(Errc::bad_configuration, "the function of a torch::Stage returned the same ",
            module_->name(), " twice; let it make a module in each call");
    make_alike(*module_, *other->module_);
    return other;
  }

 private:
  Make make_;
  std::shared_ptr<M> module_;
};

template <class G> [[nodiscard]] std::unique_ptr<Held> hold(G given) {
  if constexpr (std::same_as<G, AnyModule>)
    return HeldAny(std::move(given)).copy();
  else if constexpr (Holder<G> || is_shared_module<G>)
    return HeldModule(pointer_to(given)).copy();
  else if constexpr (requires { given(); })
    return std::make_unique<HeldMade<G>>(std::move(given));
  else
    return hold(pointer_to(given));
}

}  // namespace stagger::torch::detail
