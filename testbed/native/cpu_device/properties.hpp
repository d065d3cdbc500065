// SPDX-License-Identifier: Apache-2.0
// What the device says of itself.
#pragma once

#include <cstddef>
#include <string>

namespace paralet::cpu_device {

inline constexpr const char* device_name = "paralet CPU device";

// CUDA 12.1: new enough for the launch interface that NCCL prefers, and older than the releases in which NCCL asks for
// the driver's memory management (12.2 and 12.6), which the device does not have.
inline constexpr int driver_version = 12010;

// An attribute by its number; 0 for all that the device lacks.
int attribute_of(int attribute);

// The address on the PCI bus, "ffff:00:00.0" or PARALET_CPU_DEVICE_BUS_ID. Ranks that share a host, that is
// NCCL_HOSTID, need an address each.
std::string bus_id();

// 16 bytes, the same for equal bus_id().
void fill_uuid(char* uuid);

// Bytes of memory of the host.
std::size_t total_memory();

const char* error_name(int error);
const char* error_text(int error);

}  // namespace paralet::cpu_device
