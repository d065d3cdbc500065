// SPDX-License-Identifier: Apache-2.0
// Checks the header's structs against sizes and offsets that a compiler printed for NCCL 2.30's own headers.
#include "net.h"

struct measure {
  const char* what;
  size_t header;
  size_t nccl;
};

#define SIZE(TYPE, BYTES) \
  { "sizeof(" #TYPE ")", sizeof(TYPE), BYTES }
#define AT(TYPE, FIELD, OFFSET) \
  { "offsetof(" #TYPE ", " #FIELD ")", offsetof(TYPE, FIELD), OFFSET }

// v9 to v12 differ only after vProps.
#define PROPERTIES_AT(TYPE)                                                                                         \
  AT(TYPE, name, 0), AT(TYPE, pciPath, 8), AT(TYPE, guid, 16), AT(TYPE, ptrSupport, 24), AT(TYPE, regIsGlobal, 28), \
      AT(TYPE, forceFlush, 32), AT(TYPE, speed, 36), AT(TYPE, port, 40), AT(TYPE, latency, 44),                     \
      AT(TYPE, maxComms, 48), AT(TYPE, maxRecvs, 52), AT(TYPE, netDeviceType, 56), AT(TYPE, netDeviceVersion, 60),  \
      AT(TYPE, vProps, 64)

#define TABLE_AT(TYPE)                                                                                            \
  AT(TYPE, name, 0), AT(TYPE, init, 8), AT(TYPE, devices, 16), AT(TYPE, getProperties, 24), AT(TYPE, listen, 32), \
      AT(TYPE, connect, 40), AT(TYPE, accept, 48), AT(TYPE, regMr, 56), AT(TYPE, regMrDmaBuf, 64),                \
      AT(TYPE, deregMr, 72), AT(TYPE, isend, 80), AT(TYPE, irecv, 88), AT(TYPE, iflush, 96), AT(TYPE, test, 104), \
      AT(TYPE, closeSend, 112), AT(TYPE, closeRecv, 120), AT(TYPE, closeListen, 128), AT(TYPE, getDeviceMr, 136), \
      AT(TYPE, irecvConsumed, 144)

static const struct measure measures[] = {
    SIZE(ncclNet_v8_t, 152),
    SIZE(ncclNet_v9_t, 160),
    SIZE(ncclNet_v10_t, 160),
    SIZE(ncclNet_v11_t, 176),
    SIZE(ncclNet_v12_t, 176),
    TABLE_AT(ncclNet_v8_t),
    TABLE_AT(ncclNet_v9_t),
    TABLE_AT(ncclNet_v10_t),
    TABLE_AT(ncclNet_v11_t),
    TABLE_AT(ncclNet_v12_t),
    AT(ncclNet_v9_t, makeVDevice, 152),
    AT(ncclNet_v10_t, makeVDevice, 152),
    AT(ncclNet_v11_t, makeVDevice, 152),
    AT(ncclNet_v11_t, finalize, 160),
    AT(ncclNet_v11_t, setNetAttr, 168),
    AT(ncclNet_v12_t, makeVDevice, 152),
    AT(ncclNet_v12_t, finalize, 160),
    AT(ncclNet_v12_t, setNetAttr, 168),
    SIZE(ncclNetProperties_v8_t, 64),
    AT(ncclNetProperties_v8_t, name, 0),
    AT(ncclNetProperties_v8_t, pciPath, 8),
    AT(ncclNetProperties_v8_t, guid, 16),
    AT(ncclNetProperties_v8_t, ptrSupport, 24),
    AT(ncclNetProperties_v8_t, regIsGlobal, 28),
    AT(ncclNetProperties_v8_t, speed, 32),
    AT(ncclNetProperties_v8_t, port, 36),
    AT(ncclNetProperties_v8_t, latency, 40),
    AT(ncclNetProperties_v8_t, maxComms, 44),
    AT(ncclNetProperties_v8_t, maxRecvs, 48),
    AT(ncclNetProperties_v8_t, netDeviceType, 52),
    AT(ncclNetProperties_v8_t, netDeviceVersion, 56),
    SIZE(ncclNetProperties_v9_t, 104),
    SIZE(ncclNetProperties_v10_t, 104),
    SIZE(ncclNetProperties_v11_t, 112),
    SIZE(ncclNetProperties_v12_t, 128),
    PROPERTIES_AT(ncclNetProperties_v9_t),
    PROPERTIES_AT(ncclNetProperties_v10_t),
    PROPERTIES_AT(ncclNetProperties_v11_t),
    PROPERTIES_AT(ncclNetProperties_v12_t),
    AT(ncclNetProperties_v9_t, maxP2pBytes, 88),
    AT(ncclNetProperties_v9_t, maxCollBytes, 96),
    AT(ncclNetProperties_v10_t, maxP2pBytes, 88),
    AT(ncclNetProperties_v10_t, maxCollBytes, 96),
    AT(ncclNetProperties_v11_t, maxP2pBytes, 88),
    AT(ncclNetProperties_v11_t, maxCollBytes, 96),
    AT(ncclNetProperties_v11_t, maxMultiRequestSize, 104),
    AT(ncclNetProperties_v12_t, maxP2pBytes, 104),
    AT(ncclNetProperties_v12_t, maxCollBytes, 112),
    AT(ncclNetProperties_v12_t, maxMultiRequestSize, 120),
    AT(ncclNetProperties_v12_t, railId, 124),
    AT(ncclNetProperties_v12_t, planeId, 126),
    SIZE(ncclNetVDeviceProps_v9_t, 20),
    SIZE(ncclNetVDeviceProps_v12_t, 36),
    SIZE(ncclNetCommConfig_v10_t, 4),
    SIZE(ncclNetCommConfig_v12_t, 4),
    SIZE(ncclNetAttr_v11_t, 44),
    SIZE(ncclNetAttr_v12_t, 44),
    AT(ncclNetAttr_v12_t, recvCommAttr, 16),
    AT(ncclNetAttr_v12_t, op, 32),
    AT(ncclNetAttr_v12_t, proto, 40),
    SIZE(ncclNetDeviceHandle_v8_t, 32),
    SIZE(ncclNetDeviceHandle_v12_t, 32),
    AT(ncclNetDeviceHandle_v12_t, handle, 8),
    AT(ncclNetDeviceHandle_v12_t, needsProxyProgress, 24),
};

const char* layout_difference(void) {
  for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
    if (measures[i].header != measures[i].nccl) return measures[i].what;
  }
  return NULL;
}
