// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The Stage concept.

#include <concepts>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/model/context.hpp>

namespace stagger {

/// The saved state of a stage that declares none.
struct NothingSaved {};

namespace detail {
template <class S> struct SavedType {
  using type = NothingSaved;
};
template <class S>
  requires requires { typename S::Saved; }
struct SavedType<S> {
  using type = typename S::Saved;
};
}  // namespace detail

/// What a stage saves in forward for backward: `S::Saved`, or NothingSaved.
template <class S> using SavedOf = typename detail::SavedType<S>::type;

template <class S>
concept HasForward =
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output& y,
             SavedOf<S>& saved) { stage.forward(context, x, y, saved); };

/// Whether S has a whole backward: gradients of the input and of the parameters in one function.
template <class S>
concept HasBackward = requires(S& stage, Context& context, typename S::Input const& x,
                               typename S::Output const& dy, typename S::Input& dx,
                               SavedOf<S>& saved) { stage.backward(context, x, dy, dx, saved); };

/// Whether S has the first half of a split backward: the gradient of the input.
template <class S>
concept HasBackwardInput = requires(
    S& stage, Context& context, typename S::Input const& x, typename S::Output const& dy,
    typename S::Input& dx, SavedOf<S>& saved) { stage.backward_input(context, x, dy, dx, saved); };

/// Whether S has the second half of a split backward: the gradients of the parameters.
template <class S>
concept HasBackwardWeight =
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output const& dy,
             SavedOf<S>& saved) { stage.backward_weight(context, x, dy, saved); };

template <class S>
concept HasParameters = requires(S& stage) { stage.parameters(); };

/// Whether S keeps weights of its own, and is told when their gradients are complete.
template <class S>
concept KeepsWeights = requires(S& stage, Context& context) { stage.gradients_complete(context); };

namespace detail {

/// Converts to a temporary of type T and to an lvalue. A reference parameter binds to one of them;
/// a parameter that is taken by value could be made from both, so the call is ambiguous.
template <class T> struct Lent {
  operator T&() const;
  operator T&&() const;
};

// A result that is taken by value, and so lost, accepts both `{}` and a temporary. A parameter of
// deduced type does not accept `{}`, and a view such as std::span<float> does not accept a
// temporary.
template <class S>
concept LosesOutput =
    requires(S& stage, Context& context, typename S::Input const& x, SavedOf<S>& saved) {
      stage.forward(context, x, {}, saved);
      stage.forward(context, x, typename S::Output(), saved);
    };
template <class S>
concept LosesInputGradient = requires(S& stage, Context& context, typename S::Input const& x,
                                      typename S::Output const& dy, SavedOf<S>& saved) {
  requires requires {
    stage.backward(context, x, dy, {}, saved);
    stage.backward(context, x, dy, typename S::Input(), saved);
  } || requires {
    stage.backward_input(context, x, dy, {}, saved);
    stage.backward_input(context, x, dy, typename S::Input(), saved);
  };
};
/// Whether forward takes `saved` by value, so that what it saves is lost.
template <class S>
concept LosesSaved =
    !std::is_empty_v<SavedOf<S>> &&
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output& y) {
      stage.forward(context, x, y, {});
      stage.forward(context, x, y, SavedOf<S>());
      requires !requires(Lent<SavedOf<S>> const& saved) { stage.forward(context, x, y, saved); };
    };

template <class T> inline constexpr bool is_tie = false;
template <ParameterElement... T> inline constexpr bool is_tie<std::tuple<Parameter<T>&...>> = true;
// As many as are known at run time.
template <ParameterElement T, std::size_t N>
inline constexpr bool is_tie<std::span<Parameter<T>, N>> = true;

}  // namespace detail

/// Whether S has `parameters()`, which returns a `std::tie` of Parameters or a `std::span` of them.
template <class S>
concept TiesParameters =
    !HasParameters<S> ||
    detail::is_tie<std::remove_cvref_t<decltype(std::declval<S&>().parameters())>>;

namespace detail {

struct NamesGradientsComplete {
  void gradients_complete();
};
/// In which the name is ambiguous if S has a member of that name: private, overloaded or a template.
template <class S> struct NamesTwice : S, NamesGradientsComplete {};
template <class S>
concept HasGradientsCompleteMember =
    std::is_class_v<S> && !std::is_final_v<S> && !requires { &NamesTwice<S>::gradients_complete; };

/// Whether S has `gradients_complete`, but not as it is called, or `parameters()` as well.
template <class S>
concept KeepsWeightsWrongly =
    (KeepsWeights<S> && HasParameters<S>) || (!KeepsWeights<S> && HasGradientsCompleteMember<S>);

}  // namespace detail

/// A stage, or a layer of one: any copyable type with
///
/// @code
///     using Input = ...;     // default constructible and copyable
///     using Output = ...;    // likewise
///     // Likewise; optional. The engine owns one for each microbatch in flight.
///     struct Saved { ... };
///
///     void forward(Context&, Input const& x, Output& y, Saved&);
///
///     void backward_input(Context&, Input const& x, Output const& dy, Input& dx, Saved&);
///
///     void backward_weight(Context&, Input const& x, Output const& dy, Saved&);
///
///     auto parameters() { return std::tie(weight, bias); }  // optional
///
///     void gradients_complete(Context&);  // instead, for weights that the layer keeps and updates
/// @endcode
///
/// A layer that learns at run time how many parameters it has keeps them in a `std::vector` and
/// returns a `std::span<Parameter<T>>` of all of them instead.
///
/// Results are written into objects of the engine (`y`, `dx`, Saved), which are taken by reference
/// and keep their memory from one microbatch to the next; x and dy stay valid until the last
/// function that takes them returns. A stage whose backward cannot be split has one
/// `backward(Context&, x, dy, dx, Saved&)` instead. `backward_weight` may be omitted if there are
/// no parameters; only the first stage may omit `backward_input`.
///
/// A layer with `gradients_complete` has weights that the engine does not know: its gradients and
/// updates are its own. It is called once in each training step (of a captured one, when the graph
/// is recorded), after the layer's last backward, or backward_weight, on the thread of that. If the
/// step fails later, nothing of it is undone.
///
/// `y` and `dx` arrive with the size of an earlier microbatch, or empty: a stage sizes them before
/// it writes them, dx like x. Gradients are *added* to `context.gradient(parameter)`: it holds the
/// sum over the microbatches so far, and a stage that assigns to it trains with the last microbatch
/// alone. A stage keeps nothing that belongs to a microbatch and draws random numbers only from
/// `context.random_seed()`, so that recomputation repeats them.
///
/// @throws Error  mismatch, from a step, if a stage leaves dx with another number of elements than
///                x, or y empty where x is not: for types with `size()` and `data()`, or with
///                rows; of a type with `fields()`, if all tensors of it are empty. On a GPU for
///                cuda::Tensor, and other types with `rows_on_stream`
template <class S>
concept Stage =
    std::copyable<S> && std::semiregular<typename S::Input> &&
    std::semiregular<typename S::Output> && std::semiregular<SavedOf<S>> && HasForward<S> &&
    !detail::LosesOutput<S> && !detail::LosesSaved<S> && !detail::LosesInputGradient<S> &&
    TiesParameters<S> && (HasBackward<S> || HasBackwardInput<S> || HasBackwardWeight<S>) &&
    (!(HasParameters<S> || KeepsWeights<S>) || HasBackward<S> || HasBackwardWeight<S>) &&
    !detail::KeepsWeightsWrongly<S>;

/// Whether a stage can hand a gradient to the stage before it.
template <class S>
concept HasInputGradient = HasBackward<S> || HasBackwardInput<S>;

namespace detail {

/// @param fields  whether it is a struct, whose fields are sized
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_output(Context const& context,
                                                                       bool fields) {
  raise(Errc::mismatch, "forward of layer ", context.layer(), " left y empty, but x is not; size ",
        fields ? "the fields of y before you write them, as with y.values.resize(...)"
               : "y before you write it, as with y.resize_like(x)");
}
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_input_gradient(
    Context const& context, std::size_t given, std::size_t wanted, bool fields) {
  raise(Errc::mismatch, "backward of layer ", context.layer(), " left dx with a size of ", given,
        ", but x has ", wanted, "; size ",
        fields ? "the fields of dx before you write them, as with dx.values.resize_like(x.values)"
               : "dx before you write it, as with dx.resize_like(x)");
}
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_output_gradient(std::size_t given,
                                                                                std::size_t wanted,
                                                                                bool fields) {
  raise(Errc::mismatch, "the loss left dy with a size of ", given, ", but the model's output has ",
        wanted, "; size ",
        fields ? "the fields of dy before you write them, as with dy.values.resize_like(y.values)"
               : "dy before you write it, as with dy.resize_like(y)");
}

template <class T>
concept HasSizeAndData = requires(T const& value) {
  { value.size() } -> std::convertible_to<std::size_t>;
  *value.data();
};
/// A value that consists of others, and has neither a size nor rows itself.
template <class T>
concept HasOnlyFields = HasFields<T> && !HasSizeAndData<T> && !Rows<T>::exist;

/// What is known of the size of a value of type T.
template <class T> struct Sized {
  static constexpr bool counts = HasSizeAndData<T> || Rows<T>::exist;
  /// Whether the gradient of a value must have its size: whole numbers, such as tokens, have none.
  static constexpr bool gradient = [] {
    if constexpr (HasSizeAndData<T>)
      return !std::is_integral_v<std::remove_cvref_t<decltype(*std::declval<T const&>().data())>>;
    return counts;
  }();
  /// Whether an output must not be empty. A list, such as a std::vector, may be so by right.
  static constexpr bool output = RowSplittable<T> && HasSizeAndData<T>;
  /// Likewise its gradient, as a field of a struct.
  static constexpr bool gradient_of_field = gradient && output;
  /// Whether an empty value of the type contains nothing.
  static constexpr bool whole = HasSizeAndData<T>;
  /// Whether the host sizes it while a device still works: a device copies its rows.
  static constexpr bool on_device = [] {
    if constexpr (requires { std::bool_constant<T::rows_on_stream>{}; }) return T::rows_on_stream;
    return false;
  }();
  /// The number of elements, or of rows if the value does not count its elements.
  [[nodiscard]] static std::size_t count(T const& value) {
    if constexpr (HasSizeAndData<T>)
      return value.size();
    else if constexpr (counts)
      return Rows<T>::count(value);
    return 0;
  }
  [[nodiscard]] static std::size_t gradient_count(T const& value) {
    return gradient ? count(value) : 0;
  }
  /// Whether nothing gave the value a size; a stage may give a tensor an extent of 0.
  [[nodiscard]] static bool untouched(T const& value) {
    if constexpr (requires { value.extents(); })
      for (std::size_t const extent : value.extents())
        if (extent != 0) return false;
    return count(value) == 0;
  }
};
/// Of a struct, what is known of its fields. Not all of them need a gradient.
template <class T> using FieldsOf = decltype(std::declval<T const&>().fields());
template <class Tie> struct SizedFields;
template <class... F> struct SizedFields<std::tuple<F...>> {
  template <class T> using Of = Sized<std::remove_cvref_t<T>>;
  static constexpr bool counts = (Of<F>::counts || ...);
  static constexpr bool gradient = (Of<F>::gradient_of_field || ...);
  static constexpr bool gradient_of_field = gradient;
  static constexpr bool whole = (Of<F>::whole && ...);
  static constexpr bool output = whole && (Of<F>::output || ...);
  static constexpr bool on_device = (Of<F>::on_device && ...);
};
template <HasOnlyFields T> struct Sized<T> : SizedFields<FieldsOf<T>> {
  [[nodiscard]] static std::size_t count(T const& value) {
    return std::apply(
        [](auto const&... f) {
          return (std::size_t{0} + ... + Sized<std::remove_cvref_t<decltype(f)>>::count(f));
        },
        value.fields());
  }
  [[nodiscard]] static std::size_t gradient_count(T const& value) {
    return std::apply(
        [](auto const&... f) { return (std::size_t{0} + ... + gradient_count_of_field(f)); },
        value.fields());
  }
  [[nodiscard]] static bool untouched(T const& value) {
    return std::apply(
        [](auto const&... f) {
          return (Sized<std::remove_cvref_t<decltype(f)>>::untouched(f) && ...);
        },
        value.fields());
  }

 private:
  template <class F> [[nodiscard]] static std::size_t gradient_count_of_field(F const& field) {
    return Sized<F>::gradient_of_field ? Sized<F>::gradient_count(field) : 0;
  }
};

/// Whether the size of a value is known when a function has returned, which on a device may only
/// have enqueued what it does.
template <class T>
[[nodiscard]] [[gnu::always_inline]] inline bool size_is_known(Context const& context) {
  return Sized<T>::on_device || !context.enqueues();
}

/// Checks what forward has written.
template <class X, class Y>
[[gnu::always_inline]] inline void check_output(Context const& context, X const& x, Y const& y) {
  if constexpr (Sized<Y>::output) {
    if (!size_is_known<Y>(context) || !Sized<Y>::untouched(y)) [[likely]]
      return;
    // Those of the batch are there in any case.
    if (!size_is_known<X>(context) && context.layer() != 0) return;
    if (Sized<X>::counts && Sized<X>::count(x) == 0) return;
    refuse_output(context, HasOnlyFields<Y>);
  }
}

/// Whether a gradient lacks the size of its value. Of a struct it may be that of some fields alone.
template <class T>
[[nodiscard]] [[gnu::always_inline]] inline bool gradient_unlike(std::size_t given,
                                                                 std::size_t wanted) {
  return HasOnlyFields<T> ? given == 0 && wanted != 0 : given != wanted;
}

/// Checks what backward has written. Nothing reads the gradient of the model's input.
template <class X>
[[gnu::always_inline]] inline void check_input_gradient(Context const& context, X const& x,
                                                        X const& dx) {
  if constexpr (Sized<X>::gradient) {
    if (!size_is_known<X>(context)) return;
    std::size_t const given = Sized<X>::gradient_count(dx);
    std::size_t const wanted = Sized<X>::gradient_count(x);
    if (gradient_unlike<X>(given, wanted) && context.layer() != 0) [[unlikely]]
      refuse_input_gradient(context, given, wanted, HasOnlyFields<X>);
  }
}

/// Checks what a loss has written.
template <class Y>
[[gnu::always_inline]] inline void check_output_gradient(Context const& context, Y const& y,
                                                         Y const& dy) {
  if constexpr (Sized<Y>::gradient) {
    if (!size_is_known<Y>(context)) return;
    std::size_t const given = Sized<Y>::gradient_count(dy);
    std::size_t const wanted = Sized<Y>::gradient_count(y);
    if (gradient_unlike<Y>(given, wanted)) [[unlikely]]
      refuse_output_gradient(given, wanted, HasOnlyFields<Y>);
  }
}

}  // namespace detail

}  // namespace stagger
