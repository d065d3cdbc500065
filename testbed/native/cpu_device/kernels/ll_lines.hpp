// SPDX-License-Identifier: Apache-2.0
// The lines of protocol LL: 16 bytes, of which 8 are data.
//
// A line is two words of 8 bytes, each 4 bytes of data followed by a 4-byte flag. A word is written and read at once,
// so that a flag that fits says that the data before it is there. The flag is the number of the step plus one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paralet::cpu_device::ll {

constexpr std::size_t line_bytes = 16;
constexpr std::size_t data_bytes = 8;  // per line

// Lines for `bytes` of data.
constexpr std::size_t lines_for(std::size_t bytes) { return (bytes + data_bytes - 1) / data_bytes; }

constexpr std::uint32_t flag_of(std::uint64_t step) { return static_cast<std::uint32_t>(step + 1); }

// Whether all slots of these steps are to be written whole: flags repeat after 2^32 steps, and a line that nobody wrote
// since would pass for a new one.
constexpr bool is_cleaning_step(std::uint64_t step) { return (step & 0x7ffffff8U) == 0x7ffffff8U; }

// How many of the first `lines` lines, from line `from` on, have the flag; the count includes the `from` lines.
std::size_t count_ready(const std::byte* slot, std::size_t from, std::size_t lines, std::uint32_t flag);

// Takes `bytes` of data out of lines that are ready.
void read(const std::byte* slot, std::byte* data, std::size_t bytes);

// Writes `bytes` of data as lines; the rest of the last line is zero.
void write(std::byte* slot, const std::byte* data, std::size_t bytes, std::uint32_t flag);

}  // namespace paralet::cpu_device::ll
