"""Starting JVM bench processes."""

from collections.abc import Iterable, Mapping

from benchmarks.peers import layout

FLAGS = ("-XX:+UseParallelGC", "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true")
OPENED = (
    *("java.lang", "java.util", "java.util.zip", "java.util.concurrent", "java.io", "java.math"),
    *("java.net", "java.nio", "java.text", "sun.nio.ch", "jdk.internal.misc"),
)


def command(
    main_class: str,
    jars: Iterable[str],
    properties: Mapping[str, object],
    arguments: Mapping[str, object],
    heap_mib: int = 512,
) -> list[str]:
    """The command line of one bench process."""
    classpath = ":".join([str(layout.CLASSES), *(str(layout.jar_path(jar)) for jar in jars)])
    return [
        layout.java() or "java",
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        *FLAGS,
        *(flag for name in OPENED for flag in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")),
        *(f"-D{key}={value}" for key, value in properties.items()),
        *("-cp", classpath, main_class),
        *(f"{key}={value}" for key, value in arguments.items()),
    ]
