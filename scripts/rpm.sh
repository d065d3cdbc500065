#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds dist/paralet-*.rpm of the files that `make deb` has put together, with rpmbuild (Debian's package rpm).
#
# usage: scripts/rpm.sh [--test]
#   --test  also install it, without asking for its dependencies, in a minimal Debian that has them, and run it (root)
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
'' | --test) ;;
*)
    echo "usage: scripts/rpm.sh [--test]" >&2
    exit 2
    ;;
esac
command -v rpmbuild >/dev/null || {
    echo "rpm: rpmbuild is not here: apt install --no-install-recommends rpm" >&2
    exit 1
}
tree=$PWD/build/deb/tree
version=$(sed -n 's/^Version: //p' "$tree/DEBIAN/control")
rm -f dist/paralet-*.rpm
rpmbuild --quiet -bb --target "$(uname -m)" --define "_topdir $PWD/build/rpm" --define "_rpmdir $PWD/dist" \
    --define '_build_name_fmt %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' --define "tree $tree" \
    --define "version_given ${version%~*}" --define "glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" \
    --define "python $(readlink -m "$tree/usr/lib/paralet/bin/python3" | sed "s|^$tree||")" deploy/rpm/paralet.spec
packages=(dist/paralet-*.rpm)
echo "rpm: ${packages[0]}, $(du --apparent-size --block-size=MB "${packages[0]}" | sed 's/MB.*/ MB/')"
[[ ${1:-} == --test ]] || exit 0

files=$(rpm -qpl "${packages[0]}")
for file in /usr/bin/paralet /usr/lib64/libnccl-net-paralet.so /usr/lib/systemd/system/paralet-path-service.service; do
    grep -qx "$file" <<<"$files"
done
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
scripts/debian-root.sh "$suite"
root=$PWD/build/roots/$suite.rpm
trap 'rm -rf "$root"' EXIT
rm -rf "$root"
cp -a "build/roots/$suite" "$root"
install='apt-get update -q && apt-get install -q -y --no-install-recommends libisal2 python3'
scripts/in-root.sh "$root" sh -ec "$install" >/dev/null
rpm --root "$root" --dbpath /var/lib/rpm --nodeps --install "${packages[0]}"
scripts/in-root.sh "$root" setpriv --reuid=65534 --regid=65534 --clear-groups \
    bash -c "$(<scripts/check-installed.sh)" check plugin service
echo "rpm: runs"
