#!/bin/sh
# Makes a Debian kernel and a small initramfs for a qemu guest that has soft-RoCE, in DIR (kept: a second call is quick).
#   guest.sh DIR
# The guest sees this machine's / read-only, with a layer of its own above it. Needs the packages in NEEDS.
set -eu
NEEDS="qemu-system-x86 cpio busybox-static kmod iproute2 rdma-core ibverbs-providers libibverbs1"
for command in qemu-system-x86_64 cpio busybox depmod rdma ip; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || {
        echo "guest.sh: $command is missing; apt-get install -y --no-install-recommends $NEEDS" >&2
        exit 1
    }
done
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$1"
cd "$1"
[ -e ready ] && exit 0

package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
if [ ! -d kernel ]; then
    apt-get download -q "$package" >/dev/null
    dpkg -x "$package"_*.deb kernel
    rm "$package"_*.deb
fi
version=$(ls kernel/lib/modules 2>/dev/null || ls kernel/usr/lib/modules)
[ -d kernel/lib/modules ] || ln -s usr/lib kernel/lib
depmod -b kernel "$version"

# What runs before the switch to this machine's files: busybox, and ip and rdma with their libraries.
libraries=usr/lib/x86_64-linux-gnu
rm -rf root
mkdir -p root/bin root/tools root/dev root/proc root/sys root/modules root/lower root/over root/root "root/$libraries" root/lib64
mkdir -p root/lib
ln -s "../$libraries" root/lib/x86_64-linux-gnu
cp "$(command -v busybox)" root/bin/busybox
for name in sh mount insmod cat mkdir chroot poweroff echo; do ln -s busybox "root/bin/$name"; done
cp "$(command -v rdma)" "$(command -v ip)" root/tools/
cp -L /lib64/ld-linux-x86-64.so.2 root/lib64/
for tool in root/tools/*; do
    ldd "$tool" | grep -o '/[^ ]*' | while read -r library; do cp -Lu "$library" "root/$libraries/"; done
done
for module in crc32_generic crc32c_generic rdma_rxe ib_uverbs rdma_ucm dummy 9p 9pnet_virtio overlay virtio_pci; do
    modprobe -d kernel -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }' | while read -r file; do
        name=$(basename "$file")
        grep -qx "$name" root/modules/order 2>/dev/null && continue
        cp "$file" root/modules/
        echo "$name" >>root/modules/order
    done
done
cat >root/init <<'INIT'
#!/bin/sh
mount -t proc p /proc
mount -t sysfs s /sys
mount -t devtmpfs d /dev
cd /modules
for module in $(cat order); do insmod "$module" 2>/dev/null || echo "insmod $module failed"; done
cd /
/tools/ip link set lo up
/tools/ip addr add 10.9.0.1/24 dev dummy0
/tools/ip link set dummy0 mtu 4200 up
/tools/rdma link add rxe0 type rxe netdev dummy0
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose host /lower
mount -t tmpfs t /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work o /root
mount -t proc p /root/proc
mount -t sysfs s /root/sys
mount --bind /dev /root/dev
mkdir -p /root/dev/shm
mount -t tmpfs t /root/dev/shm
line=$(cat /proc/cmdline)
chroot /root /usr/bin/env HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin /bin/sh ${line##*run=}
echo "GUEST-STATUS=$?"
poweroff -f
INIT
chmod +x root/init
(cd root && find . | cpio -o -H newc --quiet | gzip -1) >initramfs.gz
cp "kernel/boot/vmlinuz-$version" vmlinuz
touch ready
