"""The configured installation: pipelines of the settings, checks of settings and topics, rights, and shared topics.

`configured_pipelines` turns sections of the settings into processors and topics. `settings_check` checks settings
without Kafka, `topic_check` the topics on the cluster; `acls` prints the rights of each role. Two compacted topics
are shared by all families, and have one client (`shared_topic`): the control topic (`hold`, `control_topic`,
`control_thread`, `pipeline_status`) and the topic directory (`topic_directory`,
`directory_comparison`).
"""
