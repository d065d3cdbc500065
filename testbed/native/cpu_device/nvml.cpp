// SPDX-License-Identifier: Apache-2.0
// libnvidia-ml.so.1 of the CPU device: the part of NVML that NCCL asks for, of one device without NVLink. Own
// declarations after the NVML API reference; arguments that are not looked at are not declared.
#define PARALET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int success = 0;
constexpr int invalid_argument = 2;
constexpr int not_supported = 3;
constexpr int p2p_chipset_not_supported = 1;

char only_device = 0;

}  // namespace

PARALET_EXPORT int nvmlInit() { return success; }
PARALET_EXPORT int nvmlInit_v2() { return success; }
PARALET_EXPORT int nvmlShutdown() { return success; }

PARALET_EXPORT const char* nvmlErrorString(int error) {
  switch (error) {
    case success:
      return "success";
    case invalid_argument:
      return "invalid argument";
    default:
      return "not supported by the paralet CPU device";
  }
}

PARALET_EXPORT int nvmlDeviceGetCount(unsigned* count) {
  *count = 1;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetCount_v2(unsigned* count) { return nvmlDeviceGetCount(count); }

PARALET_EXPORT int nvmlDeviceGetHandleByPciBusId(const char* /*bus*/, void** device) {
  *device = &only_device;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void** device) {
  if (index != 0) return invalid_argument;
  *device = &only_device;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetIndex(void* /*device*/, unsigned* index) {
  *index = 0;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetCudaComputeCapability(void* /*device*/, int* major, int* minor) {
  *major = 8;
  *minor = 0;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetP2PStatus(void* /*device*/, void* /*peer*/, int /*capability*/, int* status) {
  *status = p2p_chipset_not_supported;
  return success;
}

// NCCL weighs devices by their PCI links, and warns where it cannot.
PARALET_EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void* /*device*/, unsigned* generation) {
  *generation = 4;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void* /*device*/, unsigned* lanes) {
  *lanes = 16;
  return success;
}

PARALET_EXPORT int nvmlDeviceGetNvLinkState() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetNvLinkCapability() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetFieldValues() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetPciInfo_v3() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetPciInfoExt() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetPcieLinkMaxSpeed() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetGpuFabricInfoV() { return not_supported; }
PARALET_EXPORT int nvmlDeviceGetPlatformInfo() { return not_supported; }
PARALET_EXPORT int nvmlSystemGetConfComputeState() { return not_supported; }
PARALET_EXPORT int nvmlSystemGetConfComputeSettings() { return not_supported; }
