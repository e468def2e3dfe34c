// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The conversion of layers of the user's types to layers whose types are erased.

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/content_digest.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/split_ops.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/parameters/layer_shape.hpp>

namespace stagger::detail {

/// Refuses parameters of one name, which the engine could not tell apart, and those that two layers
/// list.
/// @param owner  the layer to which the parameter already belongs; negative: none
[[gnu::cold]] [[gnu::noinline]] inline void require_own_parameter(
    List<ParameterDeclaration> const& declarations, std::string const& name, int owner, int layer) {
  for (auto const& known : declarations)
    if (known.name == name)
      raise(Errc::bad_configuration, "parameters() of layer ", layer, " lists '", name,
            "' twice; list each Parameter once, under a name of its own");
  if (owner >= 0)
    raise(Errc::bad_configuration, "the parameter '", name, "' of layer ", layer,
          " belongs to layer ", owner,
          " already, of this pipeline or another; layers cannot share a Parameter, so give each "
          "one of its own");
}

[[gnu::cold]] [[gnu::noinline]] inline void require_matrix(std::string const& name, int layer,
                                                           std::size_t size, std::size_t rows) {
  if (rows != 0 && size % rows != 0)
    raise(Errc::bad_configuration, "the parameter '", name, "' of layer ", layer, " has ",
          counted(size, "value"), ", which are no matrix of ", counted(rows, "row"),
          "; give matrix() a number that divides them");
}

template <class T>
[[gnu::cold]] void adopt_parameter(List<ParameterDeclaration>& declarations,
                                   Parameter<T>& parameter, int layer) {
  require_own_parameter(declarations, parameter.name(), parameter.layer(), layer);
  require_matrix(parameter.name(), layer, parameter.size(), parameter.rows());
  ParameterDeclaration declaration;
  declaration.name = parameter.name();
  declaration.type = element_type_of<T>;
  declaration.size = parameter.size();
  declaration.rows = parameter.rows();
  declaration.decays = parameter.decays();
  declaration.piece = parameter.piece();
  auto const index = static_cast<std::uint32_t>(declarations.size());
  if (parameter.fill() != nullptr) {
    parameter.place(index, layer);
    declaration.origin = {parameter.seed(), parameter.scale()};
    declaration.typed_fill = reinterpret_cast<void (*)()>(parameter.fill());
    declaration.fill = [](ParameterDeclaration const& d, void* values) {
      auto const fill = reinterpret_cast<typename Parameter<T>::Fill>(d.typed_fill);
      auto* const to = static_cast<T*>(values);
      if (d.piece.whole == 0) return fill({to, d.size}, d.origin.seed, d.origin.scale);
      List<T> whole(d.piece.whole);
      fill({whole.data(), whole.size()}, d.origin.seed, d.origin.scale);
      for (std::size_t i = 0; i < d.size; ++i) to[i] = whole[d.piece.element(i)];
    };
  } else {
    auto const initial = parameter.adopt(index, layer);
    auto const* const bytes = reinterpret_cast<std::byte const*>(initial.data());
    declaration.initial.assign(bytes, initial.size() * sizeof(T));
  }
  declarations.push_back(std::move(declaration));
}
#ifdef STAGGER_SEPARATE_COMPILATION
extern template void adopt_parameter(List<ParameterDeclaration>&, Parameter<float>&, int);
extern template void adopt_parameter(List<ParameterDeclaration>&, Parameter<double>&, int);
#endif

template <class L> List<ParameterDeclaration> adopt_parameters(L& layer, int number) {
  List<ParameterDeclaration> declarations;
  if constexpr (HasParameters<L>) {
    auto const all = layer.parameters();
    if constexpr (requires { all.data(); })
      for (auto& parameter : all) adopt_parameter(declarations, parameter, number);
    else
      std::apply(
          [&](auto&... parameters) { (adopt_parameter(declarations, parameters, number), ...); },
          all);
  }
  return declarations;
}

/// The functions of LayerOps. Not lambdas, of which g++ compiles three functions for each.
template <class L> struct LayerFunctions {
  using X = typename L::Input;
  using Y = typename L::Output;
  using S = SavedOf<L>;

  static void destroy(void* layer) noexcept { delete static_cast<L*>(layer); }
  static void* clone(void const* layer) { return new L(*static_cast<L const*>(layer)); }
  static List<ParameterDeclaration> adopt(void* layer, int number) {
    return adopt_parameters(*static_cast<L*>(layer), number);
  }
  static void forward(void* layer, Context& context, void const* input, void* output, void* saved) {
    X const& x = *static_cast<X const*>(input);
    Y& y = *static_cast<Y*>(output);
    static_cast<L*>(layer)->forward(context, x, y, *static_cast<S*>(saved));
    check_output(context, x, y);
  }
  static void backward(void* layer, Context& context, void const* input, void const* dy,
                       void* gradient, void* saved) {
    X const& x = *static_cast<X const*>(input);
    X& dx = *static_cast<X*>(gradient);
    static_cast<L*>(layer)->backward(context, x, *static_cast<Y const*>(dy), dx,
                                     *static_cast<S*>(saved));
    check_input_gradient(context, x, dx);
  }
  static void backward_input(void* layer, Context& context, void const* input, void const* dy,
                             void* gradient, void* saved) {
    X const& x = *static_cast<X const*>(input);
    X& dx = *static_cast<X*>(gradient);
    static_cast<L*>(layer)->backward_input(context, x, *static_cast<Y const*>(dy), dx,
                                           *static_cast<S*>(saved));
    check_input_gradient(context, x, dx);
  }
  static void backward_weight(void* layer, Context& context, void const* x, void const* dy,
                              void* saved) {
    static_cast<L*>(layer)->backward_weight(context, *static_cast<X const*>(x),
                                            *static_cast<Y const*>(dy), *static_cast<S*>(saved));
  }
  static void gradients_complete(void* layer, Context& context) {
    static_cast<L*>(layer)->gradients_complete(context);
  }
  static std::uint64_t output_digest(void const* y) {
    ContentDigest digest;
    add_content(digest, *static_cast<Y const*>(y));
    return digest.value();
  }
};

template <class L> constexpr LayerOps make_layer_ops() {
  using Functions = LayerFunctions<L>;
  LayerOps ops{};
  ops.input = &slot_type<typename L::Input>;
  ops.output = &slot_type<typename L::Output>;
  ops.saved = &slot_type<SavedOf<L>>;
  ops.input_gradient = HasInputGradient<L>;
  ops.destroy = &Functions::destroy;
  ops.clone = &Functions::clone;
  ops.adopt_parameters = &Functions::adopt;
  ops.forward = &Functions::forward;
  if constexpr (HasBackward<L>) ops.backward = &Functions::backward;
  // With a whole backward and backward_input alone, W would not compute the parameters' gradients.
  constexpr bool splits =
      !HasBackward<L> || HasBackwardWeight<L> || !(HasParameters<L> || KeepsWeights<L>);
  if constexpr (HasBackwardInput<L> && splits) ops.backward_input = &Functions::backward_input;
  if constexpr (HasBackwardWeight<L>) ops.backward_weight = &Functions::backward_weight;
  if constexpr (KeepsWeights<L>) ops.gradients_complete = &Functions::gradients_complete;
  if constexpr (SplittableLayer<L> || ElementWiseLayer<L> || DividedLayer<L>)
    ops.split = &split_ops<L>;
  if constexpr (has_content<typename L::Output>) ops.digest = &Functions::output_digest;
  return ops;
}

template <class L> inline constexpr LayerOps layer_ops = make_layer_ops<L>();

template <class L> LayerOps const& ops_of() { return layer_ops<L>; }

// Not a template, so that it is compiled once for all types of layers.
[[gnu::cold]] [[gnu::noinline]] inline void append_layer(List<Layer>& layers, void* object,
                                                         LayerOps const& ops) {
  layers.push_back(Layer(object, ops));
}

/// Appends a layer, each layer of a run, or each layer of a Sequential.
template <class L> void append_layers(List<Layer>& layers, L&& layer) {
  append_layer(layers, new L(std::forward<L>(layer)), layer_ops<L>);
}
template <class L> void append_layers(List<Layer>& layers, std::vector<L>&& run) {
  for (auto& layer : run) append_layers(layers, std::move(layer));
}
template <class... L> void append_layers(List<Layer>& layers, Sequential<L...>&& sequential) {
  std::apply([&](auto&... each) { (append_layers(layers, std::move(each)), ...); },
             sequential.layers());
}

}  // namespace stagger::detail
