// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The request with which a worker joins a parameter server in another process.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/collective/handshake.hpp>
#include <stagger/core/alignment.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

using stagger::detail::LayerParameters;
using stagger::detail::ParameterDeclaration;

/// @throws Error  bad_configuration for a worker that cannot use a server in another process
[[gnu::cold]] inline void require_remote(int worker, WorkerRules const& rules) {
  namespace feature = stagger::detail::feature;
  require_rule(stagger::detail::Rule::remote_virtual_time,
               feature::remote.with(feature::virtual_time, rules.clock != nullptr),
               text("worker ", worker));
  if (rules.optimizer.digest(rules.optimizer.optimizer) == 0)
    raise(Errc::bad_configuration, "worker ", worker,
          " and the server cannot compare the numbers of this optimizer, whose members are of "
          "several types; give it 'auto fields() const { return std::tie(rate, warm_up); }' with "
          "all of them");
  if (rules.late != nullptr && rules.late->words(rules.late_policy).empty())
    raise(Errc::bad_configuration, "worker ", worker,
          " and the server cannot compare the numbers of its staleness model; give each of its "
          "policies 'auto fields() const { return std::tie(share); }' with all of them");
}

/// The payload of a message `join`, which docs/workers_protocol.md describes byte by byte.
struct JoinRequest {
  std::string run{};  ///< which the worker belongs to
  int worker = 0;
  int processes = 1;
  int process = 0;
  bool in_parts = false;
  WrittenRules rules{};
  FixedArray<LayerParameters> layers;  ///< without values
  List<std::uint64_t> digests;         ///< [layers]

  static constexpr std::size_t most_layers = 1U << 16U;
  static constexpr std::size_t longest_name = 4096;
  static constexpr std::size_t longest = 1U << 22U;  ///< bytes

  /// @throws Error  bad_configuration for a model whose request no server takes
  static void write(ByteWriter& out, int worker, std::span<LayerParameters const> layers,
                    WorkerRules const& rules, std::string const& run = {}) {
    WrittenRules const written = WrittenRules::of(rules);
    auto const u32 = [&](std::integral auto value) { out.add(static_cast<std::uint32_t>(value)); };
    auto const words = [&](std::string const& text) {
      u32(text.size());
      out.add(text.data(), text.size());
    };
    auto const require = [worker](std::size_t count, std::size_t most, char const* what,
                                  char const* remedy) {
      if (count > most)
        raise(Errc::bad_configuration, "worker ", worker, " has ", what, count,
              ", where a server in another process takes at most ", most, "; ", remedy,
              ", or use a server in this process");
    };
    require(layers.size(), most_layers, "a model whose number of layers is ",
            "make one layer of several");
    require(std::max(written.optimizer.size(), written.late.size()), longest_name,
            "an optimizer or a staleness model whose name and numbers take this many bytes: ",
            "give its type a shorter name");
    words(run);
    u32(worker);
    u32(written.push_minibatches);
    u32(rules.processes);
    u32(rules.process);
    u32(static_cast<int>(written.pushes));
    u32(static_cast<int>(written.adds));
    u32(written.ahead);
    words(written.optimizer);
    u32(rules.in_parts ? 1 : 0);
    words(written.late);
    words(written.shared);
    u32(layers.size());
    for (LayerParameters const& layer : layers) {
      out.add(values_digest(layer.values()));
      u32(layer.count());
      for (std::size_t i = 0; i < layer.count(); ++i) {
        ParameterDeclaration const& d = layer.declaration(i);
        u32(static_cast<int>(d.type));
        u32(d.decays ? 1 : 0);
        out.add(static_cast<std::uint64_t>(d.size));
        out.add(static_cast<std::uint64_t>(d.rows));
        require(d.name.size(), longest_name,
                "a parameter whose name has this many bytes: ", "give it a shorter one");
        words(d.name);
      }
    }
    require(out.size(), longest, "parameters whose names and sizes take this many bytes: ",
            "make one parameter of several, or give them shorter names");
  }

  /// @param most_bytes  most bytes that the values of all layers may have
  /// @throws Error  bad_data for a request that no worker sends, or a model that is larger
  [[gnu::cold]] void read(std::span<std::byte const> from, std::uint64_t most_bytes) {
    ByteReader in(from.data(), from.size());
    auto const u32 = [&](std::size_t most) {
      auto const value = need<std::uint32_t>(in);
      if (value > most)
        raise(Errc::bad_data, "a worker that joins names the number ", value, " where at most ",
              most, " can be; run the same version of the program at both ends");
      return value;
    };
    auto const words = [&](std::string& text, std::size_t most = longest_name) {
      text.resize(u32(std::min(most, in.left())));
      in.take(text.data(), text.size());
    };
    words(run, longest_run);
    worker = static_cast<int>(u32(0x7fffffff));
    rules.push_minibatches = static_cast<int>(u32(0x7fffffff));
    processes = static_cast<int>(u32(0x7fffffff));
    process = static_cast<int>(u32(0x7fffffff));
    rules.pushes =
        static_cast<staleness::Pushes>(u32(static_cast<int>(staleness::Pushes::weights_and_state)));
    rules.adds = static_cast<staleness::Adds>(u32(static_cast<int>(staleness::Adds::in_turn)));
    rules.ahead = u32(0xffffffff);
    words(rules.optimizer);
    in_parts = u32(1) != 0;
    words(rules.late);
    words(rules.shared, in.left());
    // Each layer takes 12 bytes of the request or more, each parameter 28.
    std::size_t const count = u32(std::min<std::size_t>(most_layers, in.left() / 12));
    layers = FixedArray<LayerParameters>(count);
    std::uint64_t bytes = 0;
    for (std::size_t l = 0; l < count; ++l) {
      digests.push_back(need<std::uint64_t>(in));
      List<ParameterDeclaration> declarations;
      for (std::size_t left = u32(in.left() / 28); left > 0; --left) {
        ParameterDeclaration d;
        d.type = u32(1) == 0 ? ElementType::f32 : ElementType::f64;
        d.decays = u32(1) != 0;
        auto const elements = need<std::uint64_t>(in);
        if (elements > most_bytes / element_bytes(d.type) ||
            (bytes += elements * element_bytes(d.type) + alignment_bytes) > most_bytes)
          raise(Errc::bad_data, "the model of a worker that joins has more than the ", most_bytes,
                " bytes that the server allows; raise model_bytes if that is right");
        d.size = elements;
        d.rows = need<std::uint64_t>(in);
        if (d.rows != 0 && d.size % d.rows != 0)
          raise(Errc::bad_data, "a worker that joins names a matrix of ", counted(d.rows, "row"),
                " and ", counted(d.size, "value"),
                "; run the same version of the program at both ends");
        words(d.name);
        declarations.push_back(std::move(d));
      }
      layers[l].adopt(std::move(declarations), static_cast<int>(l), 0, nullptr, false, false);
    }
    if (in.left() != 0)
      raise(Errc::bad_data, "a worker that joins sends ", in.left(),
            " bytes too many; run the same version of the program at both ends");
  }

 private:
  template <class T> static T need(ByteReader& in) {
    if (in.left() < sizeof(T))
      raise(Errc::bad_data,
            "the request of a worker that joins ends early; run the same version of the program at "
            "both ends");
    return in.take<T>();
  }
};

}  // namespace stagger::collective::detail
