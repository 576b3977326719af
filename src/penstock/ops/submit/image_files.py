"""The image of driver and executors: what it is built from, and what starts in it."""

from __future__ import annotations

DOCKERFILE = """\
# The image of driver and executors: Python, Java, Penstock, and Spark with the jars that it needs.
# The pipeline is not in it.
FROM python:3.11-slim-bookworm

RUN apt-get update \\
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \\
    && rm -rf /var/lib/apt/lists/*

# A release, or a wheel that lies in this folder: --build-arg PENSTOCK=./penstock-{release}-py3-none-any.whl
ARG PENSTOCK=penstock=={release}
COPY {app} *.whl /build/
WORKDIR /build
RUN pip install --no-cache-dir "$PENSTOCK"{packages}
WORKDIR /opt

ENV PENSTOCK_HOME=/opt/penstock/home \\
    SPARK_HOME=/opt/spark \\
    JAVA_HOME=/usr/lib/jvm/default-java
RUN ln -s "$(dirname "$(find /usr/lib/jvm -path '*/bin/java' | head -n 1)")/.." /usr/lib/jvm/default-java \\
    && ln -s "$(python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/spark \\
    && python -m penstock.spark.jars --into /opt/spark/jars/{stores} \\
    && mkdir -p /opt/penstock/work \\
    && chown -R 185:185 /opt/penstock

COPY {app} /opt/penstock/{app}
COPY entrypoint.sh /opt/entrypoint.sh

USER 185
WORKDIR /opt/penstock/work
ENTRYPOINT ["/opt/entrypoint.sh"]
"""

DOCKERIGNORE = """\
# Nothing of the pipeline gets into the image, nor what else lies here.
*
!{app}
!entrypoint.sh
!*.whl
"""

ENTRYPOINT = """\
#!/bin/bash
# Starts a driver or an executor, as Spark on Kubernetes calls its image; anything else is run as it is.
set -euo pipefail

# Spark's user may have no name here, and Hadoop asks for one.
if ! getent passwd "$(id -u)" > /dev/null && [ -w /etc/passwd ]; then
    echo "spark:x:$(id -u):$(id -g):Spark:/opt/penstock:/bin/false" >> /etc/passwd
fi
export HOME=/opt/penstock
CLASSPATH="${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*"

case "${1:-}" in
driver)
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \\
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \\
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \\
        --deploy-mode client "$@"
    ;;
executor)
    mapfile -t options < <(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')
    exec tini -s -- "$JAVA_HOME/bin/java" "${options[@]}" \\
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \\
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$CLASSPATH" \\
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \\
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \\
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
"""
