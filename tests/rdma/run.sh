#!/bin/sh
# Runs SCRIPT of this machine as root in a guest with soft-RoCE (device rxe0); its exit status is the script's.
#   run.sh DIR SCRIPT
set -eu
here=$(dirname "$0")
sh "$here/guest.sh" "$1"
script=$(realpath "$2")
log=$1/guest.log
timeout "${TIMEOUT:-1500}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${MEMORY:-3072}" -nographic \
    -no-reboot -kernel "$1/vmlinuz" -initrd "$1/initramfs.gz" -append "console=ttyS0 quiet panic=-1 run=$script" -nic none \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap 2>&1 | tr -d '\r' >"$log" || true
sed '1,/Booting from ROM/d' "$log"
exit "$(sed -n 's/.*GUEST-STATUS=\([0-9]*\).*/\1/p' "$log" | tail -1 | grep . || echo 1)"
