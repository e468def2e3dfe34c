// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/device.hpp>

#include "catch.hpp"

#include "cuda_stand_in/stand_in.hpp"

namespace device_test {

namespace sg = stagger;
namespace si = cuda_stand_in;

namespace {

std::string words(auto call) {
  try {
    call();
  } catch (sg::Error const& error) {
    return error.what();
  }
  return "";
}

si::Machine machine(int devices, std::uint64_t bytes, int driver) {
  si::Machine result;
  result.devices = devices;
  result.memory_bytes = bytes;
  result.driver = driver;
  return result;
}

constexpr std::uint64_t mebi = 1U << 20U;

}  // namespace

TEST_CASE("cuda/device: what is missing is said at once, each in its own words", "[cuda]") {
  si::Session const session;
  auto const select = [](int index) { return words([=] { sg::cuda::select_device(index); }); };
  si::set_machine(machine(2, mebi, 0));
  CHECK(select(0).find("there is no CUDA driver on this machine") == 0);
  si::set_machine(machine(2, mebi, 12040));
  CHECK(select(0).find(
            "the CUDA driver supports version 12.4 and this program was built for 13.") == 0);
  si::set_machine(machine(0, mebi, 13000));
  CHECK(select(0).find("there is a CUDA driver but no GPU") == 0);
  si::set_machine(machine(2, mebi, 13000));
  CHECK(select(2) == "there is no GPU 2; this process may use 0 to 1");
  CHECK(select(-1) == "there is no GPU -1; this process may use 0 to 1");
  CHECK(select(1).empty());
}

TEST_CASE("cuda/device: errors keep CUDA's own code", "[cuda]") {
  si::Session const session;
  si::set_machine(machine(0, mebi, 13000));
  try {
    static_cast<void>(sg::cuda::device_count());
    FAIL();
  } catch (sg::cuda::Error const& error) {
    CHECK(error.result() == cudaErrorNoDevice);
    CHECK(error.code() == sg::Errc::device);
  }
  si::set_machine(machine(2, mebi, 13000));
  si::fail(si::Call::set_device, 1, cudaErrorIllegalAddress);
  CHECK(words([] { sg::cuda::select_device(0); }) ==
        "CUDA could not select a GPU: cudaErrorIllegalAddress (an error of the stand-in); what the "
        "device "
        "computed in this process is lost; start anew from the last checkpoint");
}

TEST_CASE("cuda/device: too little memory says what is needed, free, and what would fit",
          "[cuda]") {
  si::Session const session;
  si::set_machine(machine(1, 100 * mebi, 13000));
  auto const need = [](std::uint64_t fixed, std::uint64_t each, int count) {
    return words([=] {
      sg::cuda::select_device(
          0, {.fixed_bytes = fixed * mebi, .in_flight_bytes = each * mebi, .in_flight = count});
    });
  };
  CHECK(need(20, 10, 8).empty());
  CHECK(need(20, 10, 9) ==
        "GPU 0 (stand-in) needs 110.0 MiB: 20.0 MiB and 9 x 10.0 MiB in flight; free are 100.0 MiB "
        "of 100.0 MiB; it fits with 8 microbatches in flight or fewer");
  CHECK(need(120, 10, 1).find("not even the parameters fit; use more stages") != std::string::npos);
  CHECK(need(95, 10, 4).find("not one microbatch in flight fits") != std::string::npos);
}

}  // namespace device_test
